"""Every store behind one fixture; each test has its own prefix."""

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from opendal import AsyncOperator

from penstock.config import CloudSection
from penstock.objects import MemoryStore, ObjectStore, open_store
from penstock.objects.calls import CallLimits
from penstock.objects.fs import FileStore
from penstock.objects.remote import RemoteStore
from penstock.objects.transfer import TransferLimits
from tests.servers import azurite, testbench
from tests.servers.s3 import S3Server

PART_BYTES = 5 << 20
SERVERS = {"azblob": "azurite", "gcs": "testbench"}
ENFORCING = [
    *("fs", "memory", "opendal-memory", "seaweedfs"),
    *(["azblob"] if azurite.PROGRAM else []),
    *(["gcs"] if testbench.PROGRAM else []),
]
"""Stores where exactly one of several racing writers wins."""
collect_ignore = [] if testbench.PROGRAM else ["test_gcs.py"]
STORES = [*ENFORCING, "rclone"]

Opener = Callable[[], ObjectStore]


@pytest_asyncio.fixture
async def opener(
    request: pytest.FixtureRequest, backend: str, tmp_path: Path
) -> AsyncIterator[Opener]:
    """Opens another client of the store; a store in memory has only one."""
    opened: list[ObjectStore] = []
    make = _maker(request, backend, tmp_path)

    def open_and_remember() -> ObjectStore:
        opened.append(make())
        return opened[-1]

    yield open_and_remember
    for store in opened:
        await store.close()


@pytest.fixture(params=STORES)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest_asyncio.fixture
async def store(opener: Opener) -> ObjectStore:
    return opener()


def _maker(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Opener:
    if backend == "fs":
        return lambda: FileStore(tmp_path / "objects")
    if backend == "memory":
        memory = MemoryStore()
        return lambda: memory
    if backend == "opendal-memory":
        operator = AsyncOperator("memory")
        return lambda: RemoteStore("memory", operator, CallLimits(), TransferLimits(PART_BYTES, 2))
    cloud = _cloud(request, backend)
    return lambda: open_store(cloud, tmp_path)


def _cloud(request: pytest.FixtureRequest, backend: str) -> CloudSection:
    server: S3Server | azurite.AzureServer | testbench.GcsServer
    server = request.getfixturevalue(SERVERS.get(backend, backend))
    return dataclasses.replace(server.cloud(), part_bytes=PART_BYTES, parts_in_flight=2)
