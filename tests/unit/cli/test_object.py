"""`penstock object`: what lies in the bucket, whole or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from tests.unit.assembly.stored import fill, opened


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 100)
    return tmp_path


def run(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(cli, ["object", *arguments])
    return result.exit_code, result.stdout.splitlines()


def the_object(data: Path) -> Path:
    (path,) = (data / "objects").rglob("*.parquet")
    return path


@pytest.mark.feature("T33")
def test_ls_tells_live_objects_from_others_and_missing_ones(data: Path) -> None:
    path = the_object(data)
    path.with_name(path.name.replace("data-", "data-0")).write_bytes(path.read_bytes())
    code, lines = run("ls", "orders", "--data", str(data), "--json")
    assert code == 0
    assert sorted(json.loads(line)["state"] for line in lines) == ["live", "unnamed"]
    path.unlink()
    code, lines = run("ls", "orders", "--data", str(data), "--json")
    assert code == 1
    assert sorted(json.loads(line)["state"] for line in lines) == ["missing", "unnamed"]


@pytest.mark.feature("T33")
def test_dump_shows_what_the_object_says_of_itself_and_its_first_rows(data: Path) -> None:
    code, lines = run("dump", str(the_object(data)), "--rows", "2")
    assert code == 0
    assert lines[0].startswith(
        "object version 1 of topic default/default/orders: 100 messages, partition 0: 0 to 99, "
    )
    assert lines[1:7] == [
        "  partition: int32",
        "  offset: int64",
        "  timestamp: timestamp[us, tz=UTC]",
        "  subject: string",
        "  headers: binary",
        "  payload: binary",
    ]
    rows = [json.loads(line) for line in lines[7:]]
    assert [(row["offset"], row["subject"], row["payload"]) for row in rows] == [
        (0, "orders.eu", "0"),
        (1, "orders.eu", "1"),
    ]


@pytest.mark.feature("T33", "T16")
def test_verify_finds_a_flipped_byte(data: Path) -> None:
    assert run("verify", "orders", "--data", str(data))[0] == 0
    path = the_object(data)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.chmod(0o640)
    path.write_bytes(content)
    code, lines = run("verify", "orders", "--data", str(data))
    assert code == 1
    assert "  its bytes are not those the manifest names" in lines
    assert lines[-1] == "1 objects, 1 damaged"
