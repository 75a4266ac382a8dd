"""Shares reads between the parts of a stream that scan its older messages at the same time.

When a stream is opened, the sizes, TTLs and schedules of older messages may have to be read, from
files or from the bucket. Each part scans at its own pace. While they are at about the same offset,
each range is read once for all of them, so that an opening costs one pass over the stream. A part
that falls behind by more than a few reads reads for itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.host.tasks import Tasks, Timer
from penstock.model.batch import AtHead, Batch, Gone
from penstock.topics import OpenPartition

SHARED_READS_MAX: Final = 4
"""Limit of results that are cached for parts that are behind."""
CACHE_SECONDS: Final = 1.0
"""Results are released after this time without a read."""

ReadResult = list[Batch] | AtHead | Gone


class SharedScan:
    """Reads one partition for several scans."""

    def __init__(self, partition: OpenPartition) -> None:
        self._partition = partition
        self._reads: dict[tuple[int, int], asyncio.Task[ReadResult]] = {}
        """Recent reads of messages, by offset and limit."""
        self._tasks = Tasks()
        self._release = Timer(self.forget)

    async def read(self, offset: int, bytes_max: int) -> ReadResult:
        """Batches from `offset` on, as `OpenPartition.read` returns them, perhaps read before."""
        key = (offset, bytes_max)
        shared = self._reads.get(key)
        read = shared or self._tasks.start(self._partition.read(offset, bytes_max))
        self._reads[key] = read
        self._release.after(CACHE_SECONDS)
        while len(self._reads) > SHARED_READS_MAX:
            del self._reads[next(iter(self._reads))]
        try:
            result = await asyncio.shield(read)
        except BaseException:
            self._reads.pop(key, None)
            raise
        if isinstance(result, list):
            return result
        self._reads.pop(key, None)
        # Messages may have been appended since another scan found the end.
        return result if shared is None else await self._partition.read(offset, bytes_max)

    def forget(self) -> None:
        """Forget earlier reads, because other messages may be readable now."""
        self._reads.clear()
        self._release.stop()
