"""`penstock wal`, compared with golden output for a log that the real writer wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.formats.bodies import ObjectRef
from penstock.host.clock import Clock
from penstock.log import Logs, LogSettings, SharedLimits, opening
from penstock.model import names
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Microseconds, Offset, PartitionId

FILE = "wal-0000000000-0000000000000000.log"
GOLDEN = Path(__file__).with_name("wal_dump.txt").read_text()


class FixedClock(Clock):
    def now_us(self) -> Microseconds:
        return Microseconds(1_700_000_000_000_000)


@pytest.fixture
async def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a topic with a frame of every kind."""
    monkeypatch.setattr(opening, "random_u32", lambda: 0x01020304)
    monkeypatch.setattr(opening, "unique_name", lambda: "0" * 32)
    settings, limits = LogSettings(idle_seconds=60), SharedLimits(reserve_bytes=4096)
    logs = Logs(tmp_path, settings, limits, clock=FixedClock())
    await logs.open()
    log = await logs.create(names.topic("orders"))
    await log.append(Run([b"orders.eu", b"orders.us"], [b"first", b"second"], [b"", b"X: y\r\n"]))
    await log.append(ColumnRun(pa.record_batch({"id": pa.array([1, 2])}), PartitionId(7)))
    await log.delete(PartitionId(0), [0])
    await log.purge(PartitionId(7), Offset(1))
    await log.settle(b"x", 1)
    staged = ObjectRef("staged/a.parquet", rows=10, size_bytes=100, crc32c=1)
    await log.link("spark", 1, {PartitionId(0): [staged]})
    await logs.close()
    return tmp_path / "default/default/orders"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["wal", *arguments])
    return result.exit_code, result.output


def flip(topic: Path, position: int) -> None:
    data = bytearray((topic / FILE).read_bytes())
    data[position] ^= 1
    (topic / FILE).write_bytes(data)


@pytest.mark.feature("T33")
def test_dump_shows_every_frame_and_its_messages(topic: Path) -> None:
    assert run("dump", "--messages", str(topic)) == (0, GOLDEN)


@pytest.mark.feature("T33")
def test_dump_of_the_only_file_equals_the_dump_of_its_directory(topic: Path) -> None:
    assert run("dump", str(topic / FILE)) == run("dump", str(topic))


@pytest.mark.feature("T33")
def test_dump_as_json_is_one_object_a_frame(topic: Path) -> None:
    code, output = run("dump", "--json", "--messages", str(topic))
    frames = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert [frame["kind"] for frame in frames] == [
        "start",
        "batch",
        "batch",
        "delete",
        "delete",
        "settle",
        "link",
        "close",
    ]
    assert frames[1]["messages"] == [
        {"offset": 0, "subject": "orders.eu", "payload": "first"},
        {"offset": 1, "subject": "orders.us", "payload": "second"},
    ]


@pytest.mark.feature("T33")
def test_verify_reports_an_intact_log(topic: Path) -> None:
    assert run("verify", str(topic)) == (
        0,
        f"{FILE}: intact, open, 8 frames, 14 messages\n1 file, intact\n",
    )


@pytest.mark.feature("T33")
def test_verify_names_the_offsets_of_a_damaged_batch_and_fails(topic: Path) -> None:
    flip(topic, 300)
    lines = [
        f"{FILE}: DAMAGED, open, 7 frames, 12 messages",
        "  byte 208: corrupt: 144 bytes from frame 1 on, partition 0, offsets 0 to 1",
        "1 file, 1 damaged",
    ]
    assert run("verify", str(topic)) == (1, "\n".join(lines) + "\n")


def test_verify_as_json_lists_the_problems(topic: Path) -> None:
    flip(topic, 1103)
    code, output = run("verify", "--json", str(topic))
    assert code == 1
    assert json.loads(output)["problems"] == [
        {"position": 1096, "problem": "uncertain: 104 bytes from frame 7 on"}
    ]


def test_dump_marks_damaged_bytes(topic: Path) -> None:
    flip(topic, 300)
    _, output = run("dump", str(topic))
    assert "         208 144 bytes CORRUPT\n" in output


def test_a_directory_without_wal_files_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["wal", "verify", str(tmp_path)])
    assert str(result.exception) == f"{tmp_path} is no WAL file and no directory with WAL files"
