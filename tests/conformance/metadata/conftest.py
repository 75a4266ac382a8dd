"""Both stores, behind one fixture.

These tests share one event loop: grpc keeps one poller for all loops of a process, and a loop that
is closed under it takes the events of the next.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.metadata import Metadata
from penstock.metadata.etcd import EtcdMetadata, EtcdSettings
from penstock.metadata.sqlite import HistoryLimits, SqliteMetadata
from tests.servers.etcd import EtcdServer

HISTORY_CHANGES_MAX = 2000
CALL_SECONDS = 30.0
"""Long, so that a busy machine is not mistaken for a broken store."""

Opener = Callable[[], Awaitable[Metadata]]

_numbers = itertools.count()


@pytest.fixture
def root() -> str:
    """Where this test's keys are; nobody else's are there."""
    return f"/test-{next(_numbers)}"


@pytest_asyncio.fixture(loop_scope="session", params=["sqlite", "etcd"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens another connection to one store; only etcd can have several at a time."""
    opened: list[Metadata] = []

    async def open_sqlite() -> Metadata:
        return await SqliteMetadata.open(
            tmp_path / "meta", history=HistoryLimits(changes_max=HISTORY_CHANGES_MAX)
        )

    async def open_etcd() -> Metadata:
        server: EtcdServer = request.getfixturevalue("etcd_server")
        return EtcdMetadata(EtcdSettings((server.endpoint,), CALL_SECONDS))

    async def open_and_remember() -> Metadata:
        opened.append(await (open_sqlite() if request.param == "sqlite" else open_etcd()))
        return opened[-1]

    yield open_and_remember
    for store in opened:
        await store.close()


@pytest_asyncio.fixture(loop_scope="session")
async def store(open_store: Opener) -> Metadata:
    return await open_store()


@pytest_asyncio.fixture(loop_scope="session")
async def forget_history(
    request: pytest.FixtureRequest, store: Metadata, root: str
) -> Callable[[], Awaitable[None]]:
    """Makes the store forget all changes made so far, but for what it must keep."""

    async def forget() -> None:
        if isinstance(store, SqliteMetadata):
            fillers = (store.put(f"{root}-filler", b"") for _ in range(HISTORY_CHANGES_MAX + 1))
            await asyncio.gather(*fillers)
        else:
            server: EtcdServer = request.getfixturevalue("etcd_server")
            revision = await store.put(f"{root}-filler", b"")
            server.control("compaction", str(revision))

    return forget
