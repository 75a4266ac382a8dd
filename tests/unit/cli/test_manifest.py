"""`penstock manifest`: shown, rebuilt from the bucket alone, and never replaced by accident."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from tests.unit.assembly.stored import TOPIC, fill, opened, payloads


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 100)
        await fill(storage, 100, 50)
    return tmp_path


def run(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.stdout.splitlines()


def test_show_prints_the_head_and_then_the_objects(data: Path) -> None:
    code, lines = run("manifest", "show", "orders", "--data", str(data))
    head, *objects = [json.loads(line) for line in lines]
    assert code == 0
    assert head["topic"] == "default/default/orders"
    assert [entry["ranges"] for entry in objects] == [[[0, 0, 100]], [[0, 100, 150]]]


def test_a_topic_without_a_manifest_is_an_error(tmp_path: Path) -> None:
    assert run("manifest", "show", "orders", "--data", str(tmp_path)) == (1, [])


@pytest.mark.feature("T18")
def test_a_lost_manifest_is_rebuilt_from_the_bucket(data: Path) -> None:
    shutil.rmtree(data / "metadata")
    code, lines = run("manifest", "rebuild", "orders", "--data", str(data))
    found = json.loads(lines[0])
    assert (code, found["rows"], found["next_offsets"]) == (0, 150, {"0": 150})
    assert asyncio.run(_read_all(data)) == [b"%d" % n for n in range(150)]


async def _read_all(data: Path) -> list[bytes]:
    async with opened(data) as storage:
        assert storage.tiers is not None
        await storage.tiers.add(TOPIC)
        return await payloads(storage)


def test_a_manifest_that_is_there_is_not_replaced_unless_asked(data: Path) -> None:
    result = CliRunner().invoke(cli, ["manifest", "rebuild", "orders", "--data", str(data)])
    assert "say --replace to replace it" in str(result.exception)
    assert run("manifest", "rebuild", "orders", "--data", str(data), "--dry-run")[0] == 0
    assert run("manifest", "rebuild", "orders", "--data", str(data), "--replace")[0] == 0
