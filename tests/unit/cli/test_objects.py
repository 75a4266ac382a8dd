"""`penstock manifest` and `penstock object`, which work without a broker."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.assembly.directory import locked
from penstock.cli import cli
from penstock.cli.objects import OfflineStores, read_config, run_offline
from penstock.model.errors import StartRefused
from tests.unit.assembly.stored import TOPIC, fill, opened, payloads


def test_embedded_metadata_in_use_by_a_broker_is_refused(tmp_path: Path) -> None:
    config = read_config(None, str(tmp_path), ())

    async def work(stores: OfflineStores) -> int:
        raise AssertionError("the directory is in use")

    with locked(str(tmp_path)), pytest.raises(StartRefused, match="is in use by process"):
        run_offline(config, work)


def test_work_receives_the_stores_and_returns_the_exit_code(tmp_path: Path) -> None:
    async def work(stores: OfflineStores) -> int:
        await stores.metadata.put("/x", b"y")
        entry = await stores.metadata.get("/x")
        return 7 if entry is not None and entry.value == b"y" else 0

    assert run_offline(read_config(None, str(tmp_path), ()), work) == 7


@pytest.fixture
async def two_objects(tmp_path: Path) -> Path:
    """A data directory with a topic of two objects."""
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 100)
        await fill(storage, 100, 50)
    return tmp_path


@pytest.fixture
async def one_object(tmp_path: Path) -> Path:
    """A data directory with a topic of one object."""
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 100)
    return tmp_path


def run(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.stdout.splitlines()


def test_show_prints_the_head_and_then_the_objects(two_objects: Path) -> None:
    code, lines = run("manifest", "show", "orders", "--data", str(two_objects))
    head, *objects = [json.loads(line) for line in lines]
    assert code == 0
    assert head["topic"] == "default/default/orders"
    assert [entry["ranges"] for entry in objects] == [[[0, 0, 100]], [[0, 100, 150]]]


def test_a_topic_without_a_manifest_is_an_error(tmp_path: Path) -> None:
    assert run("manifest", "show", "orders", "--data", str(tmp_path)) == (1, [])


@pytest.mark.feature("T18")
def test_a_lost_manifest_is_rebuilt_from_the_bucket(two_objects: Path) -> None:
    shutil.rmtree(two_objects / "metadata")
    code, lines = run("manifest", "rebuild", "orders", "--data", str(two_objects))
    summary = json.loads(lines[0])
    assert (code, summary["rows"], summary["next_offsets"]) == (0, 150, {"0": 150})
    assert asyncio.run(_read_all(two_objects)) == [b"%d" % n for n in range(150)]


async def _read_all(data: Path) -> list[bytes]:
    async with opened(data) as storage:
        assert storage.tiers is not None
        await storage.tiers.add(TOPIC)
        return await payloads(storage)


def test_an_existing_manifest_is_replaced_only_with_replace(two_objects: Path) -> None:
    result = CliRunner().invoke(cli, ["manifest", "rebuild", "orders", "--data", str(two_objects)])
    assert "say --replace to replace it" in str(result.exception)
    assert run("manifest", "rebuild", "orders", "--data", str(two_objects), "--dry-run")[0] == 0
    assert run("manifest", "rebuild", "orders", "--data", str(two_objects), "--replace")[0] == 0


def only_object(data: Path) -> Path:
    (path,) = (data / "objects").rglob("*.parquet")
    return path


@pytest.mark.feature("T33")
def test_ls_shows_live_unnamed_and_missing_objects(one_object: Path) -> None:
    path = only_object(one_object)
    path.with_name(path.name.replace("data-", "data-0")).write_bytes(path.read_bytes())
    code, lines = run("object", "ls", "orders", "--data", str(one_object), "--json")
    assert code == 0
    assert sorted(json.loads(line)["state"] for line in lines) == ["live", "unnamed"]
    path.unlink()
    code, lines = run("object", "ls", "orders", "--data", str(one_object), "--json")
    assert code == 1
    assert sorted(json.loads(line)["state"] for line in lines) == ["missing", "unnamed"]


@pytest.mark.feature("T33")
def test_dump_shows_the_metadata_and_the_first_rows(one_object: Path) -> None:
    code, lines = run("object", "dump", str(only_object(one_object)), "--rows", "2")
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
def test_verify_finds_a_flipped_byte(one_object: Path) -> None:
    assert run("object", "verify", "orders", "--data", str(one_object))[0] == 0
    path = only_object(one_object)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.chmod(0o640)
    path.write_bytes(content)
    code, lines = run("object", "verify", "orders", "--data", str(one_object))
    assert code == 1
    assert "  its bytes are not those the manifest names" in lines
    assert lines[-1] == "1 objects, 1 damaged"
