"""Make the next object of a topic from its WAL: collect frames and encode them, and as long as much
more waits and goes with them, that too; an object that is large at once need not be merged.

It is one call without the log's own state, so that it can be made in a thread, or in the child
process when much waits: there it takes nothing from the loop but the disk's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.host.child import Child
from penstock.host.disk import Disk
from penstock.host.process import CpuYield
from penstock.host.shared_memory import SharedFile, mapped_view, shared_memory
from penstock.host.threads import WorkerThreads
from penstock.log import Collected, Cursor, LinkFrame, WalFile, collect
from penstock.model.names import TopicName
from penstock.objects import Buffer
from penstock.tiers.build import Building
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import ObjectEntry

APART_BYTES: Final = 32 << 20
"""From so many bytes of WAL on, an object is made in the child process."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The next object: from where, how much of it, and what it is to say of itself."""

    topic: TopicName
    files: Sequence[WalFile]
    """From that of the cursor on."""
    cursor: Cursor
    deletions: Deletions
    collect_bytes: int
    """Collected at a time; less than half of it is all there is."""
    object_bytes: int
    """The object grows no more from here on,"""
    wal_bytes_max: int
    """nor beyond so much of the WAL."""
    epoch: int
    created_us: int
    unique: str
    backend: str
    sequence: int

    @property
    def waiting_bytes(self) -> int:
        """Of the WAL, from the cursor on."""
        return sum(file.end for file in self.files) - self.cursor.position


@dataclass(frozen=True, slots=True)
class Made:
    """What came of it: an object, or links, or nothing but frames without messages."""

    cursor: Cursor
    size_bytes: int
    more: bool
    """Whether much may wait behind it."""
    links: Sequence[LinkFrame] = ()
    entry: ObjectEntry | None = None
    data: Buffer = b""


async def make(wanted: Wanted, disk: Disk, threads: WorkerThreads, child: Child) -> Made:
    """The next object, made where it disturbs least; raises OSError and ChildFailed."""
    with shared_memory() as memory:
        if wanted.waiting_bytes < APART_BYTES:
            made = await threads.run(make_here, wanted, disk, memory)
        else:
            made = await child.call(make_apart, wanted, memory)
        return replace(made, data=mapped_view(memory))


def make_apart(wanted: Wanted, memory: SharedFile) -> Made:
    """The next object, made where others come first."""
    return make_here(wanted, Disk(), memory, CpuYield().pause)


def make_here(
    wanted: Wanted, disk: Disk, memory: SharedFile, rest: Callable[[], None] = lambda: None
) -> Made:
    """The next object, its bytes in `memory`; `rest` is called between the pieces of work."""
    deletions = wanted.deletions
    collected = _collect(wanted, disk, wanted.cursor)
    if collected.links:
        return Made(collected.cursor, collected.size_bytes, True, collected.links)
    building, size = Building(wanted.topic, wanted.cursor.frame, memory), 0
    while True:
        building.add(collected, deletions)
        collected.batches.clear()  # Not to be in memory while the next ones are read.
        rest()
        cursor, size = collected.cursor, size + collected.size_bytes
        more = collected.size_bytes > wanted.collect_bytes // 2
        large = building.size >= wanted.object_bytes
        if not more or large or size + wanted.collect_bytes > wanted.wal_bytes_max:
            break
        collected = _collect(wanted, disk, cursor)
        if not building.takes(collected, deletions.recorded):
            break
    entry = building.finish(
        wanted.epoch, wanted.created_us, wanted.unique, wanted.backend, wanted.sequence
    )
    return Made(cursor, size, more, (), entry)


def _collect(wanted: Wanted, disk: Disk, cursor: Cursor) -> Collected:
    return collect(disk, wanted.files, cursor, wanted.collect_bytes, wanted.deletions.recorded)
