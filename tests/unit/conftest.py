"""A world for brokers, which is closed after each test."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.metadata.sqlite import tables as sqlite_tables
from tests.broker.storage import World, nothing_uncaught
from tests.unit.log.conftest import InThread

# Every world looks for what nobody caught by collecting garbage: let that be quick.
gc.freeze()


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no child process and no fsync: these tests do not cut the power."""
    pragmas = [text.replace("=FULL", "=OFF") for text in sqlite_tables._PRAGMAS]
    monkeypatch.setattr(sqlite_tables, "_PRAGMAS", tuple(pragmas))
    monkeypatch.setattr("penstock.log.logs.Child", InThread)


@pytest_asyncio.fixture
async def world(tmp_path: Path, light: None) -> AsyncIterator[World]:
    async with nothing_uncaught():
        world = World(tmp_path)
        await world.open()
        yield world
        await world.close()
