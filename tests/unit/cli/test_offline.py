"""Tools that work on a data directory without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.assembly.directory import locked
from penstock.cli.offline import Stores, read_config, run
from penstock.model.errors import StartRefused


def test_embedded_metadata_in_use_by_a_broker_is_left_alone(tmp_path: Path) -> None:
    config = read_config(None, str(tmp_path), ())

    async def work(stores: Stores) -> int:
        raise AssertionError("the directory is in use")

    with locked(str(tmp_path)), pytest.raises(StartRefused, match="is in use by process"):
        run(config, work)


def test_the_work_gets_the_stores_and_its_answer_is_returned(tmp_path: Path) -> None:
    async def work(stores: Stores) -> int:
        await stores.metadata.put("/x", b"y")
        entry = await stores.metadata.get("/x")
        return 7 if entry is not None and entry.value == b"y" else 0

    assert run(read_config(None, str(tmp_path), ()), work) == 7
