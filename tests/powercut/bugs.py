"""Bugs of the tiers, planted: each must be found by power cuts, or the cuts prove nothing.

None of them loses anything while the power is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from penstock.host.disk import Disk
from penstock.metadata.sqlite import tables as sqlite_tables
from penstock.objects import Buffer, ObjectInfo
from penstock.objects.fs import FileStore
from penstock.tiers.manifest.entries import ObjectEntry
from penstock.tiers.topic_tier import TopicTier
from penstock.tiers.upkeep import retention
from tests.powercut.disks import AimedDisk
from tests.powercut.orders import Bug

SLOW_SECONDS: Final = 0.05
"""What comes too early does so by more than a moment."""


class UnsyncedStoreDisk(AimedDisk):
    """A bucket's disk that makes neither bytes nor names durable."""

    def sync(self, fd: int) -> None:
        """Nothing is synced."""

    def sync_directory(self, directory: Path) -> None:
        """Nothing is synced."""


class EarlyStore(FileStore):
    """Has objects committed to the manifest while they are on their way."""

    def __init__(self, root: Path, disk: Disk) -> None:
        super().__init__(root, disk)
        self._on_their_way: dict[str, bytes] = {}

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        data = self._on_their_way[key] = b"".join(pieces)
        asyncio.create_task(self._send(key, data)).add_done_callback(partial(self._there, key))
        return ObjectInfo(key, len(data), None)

    async def get(
        self, key: str, start: int = 0, size: int | None = None, *, crc32c: int | None = None
    ) -> bytes:
        if (data := self._on_their_way.get(key)) is not None:
            return data[start : None if size is None else start + size]
        return await super().get(key, start, size, crc32c=crc32c)

    async def _send(self, key: str, data: bytes) -> None:
        await asyncio.sleep(SLOW_SECONDS)
        await super().put(key, [data])

    def _there(self, key: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            del self._on_their_way[key]


class EarlyPruneTier(TopicTier):
    """Removes WAL files when their rows are about to go to the bucket."""

    async def put(self, entry: ObjectEntry, data: Buffer) -> list[ObjectEntry]:
        files = retention.prunable(
            self.log.files.all(),
            self.collected_frame,
            self._host.settings,
            self._host.clock.now_us(),
            self.log.state.settle_floor,
        )
        await self.log.prune(files)
        await asyncio.sleep(SLOW_SECONDS)
        return await super().put(entry, data)


class EarlyAckTier(TopicTier):
    """Acknowledges what is on its way to the bucket as if it was there."""

    async def _prepare(self, ahead: int) -> Any:
        upload = await super()._prepare(ahead)
        self.log.writer.uploaded(self.collected_frame)
        await asyncio.sleep(SLOW_SECONDS)
        return upload


def _unsynced_metadata() -> AbstractContextManager[object]:
    pragmas = (*sqlite_tables._PRAGMAS, "PRAGMA synchronous=OFF")
    return patch.object(sqlite_tables, "_PRAGMAS", pragmas)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a storage is made of, in place of the true parts."""

    object_disk: type[AimedDisk] = AimedDisk
    store: type[FileStore] = FileStore
    tier: type[TopicTier] = TopicTier
    metadata: Callable[[], AbstractContextManager[object]] = nullcontext
    """Holds while the metadata are opened."""


BUGS: Final = {
    Bug.UNSYNCED_OBJECTS: Parts(object_disk=UnsyncedStoreDisk),
    Bug.EARLY_MANIFEST: Parts(store=EarlyStore),
    Bug.EARLY_PRUNE: Parts(tier=EarlyPruneTier),
    Bug.EARLY_ACK: Parts(tier=EarlyAckTier),
    Bug.UNSYNCED_METADATA: Parts(metadata=_unsynced_metadata),
}
