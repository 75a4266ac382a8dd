"""Makes the next object of a topic from its WAL: collects frames and encodes them.

As long as much WAL is waiting that fits into the object, it is added too: an object that is large
from the start need not be merged. Making an object is one call without access to the log's state,
so that it can run in a thread, or in the child process if much WAL is waiting: there it takes
nothing from the event loop but the bandwidth of the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.host.child import Child
from penstock.host.disk import Disk
from penstock.host.process import CpuYield
from penstock.host.shared_memory import SharedFile, mapped_view, shared_memory
from penstock.host.threads import WorkerThreads
from penstock.log import Collected, Cursor, LinkFrame, WalFile, collect
from penstock.model.names import TopicName
from penstock.objects import Buffer
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import ObjectEntry
from penstock.tiers.upload.object_builder import ObjectBuilder


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """What to make: where to start in the WAL, size limits, and facts for the manifest entry."""

    topic: TopicName
    files: Sequence[WalFile]
    """The WAL files from the one of the cursor on."""
    cursor: Cursor
    deletions: Deletions
    collect_bytes: int
    """How much to collect at a time; if less than half of it is found, no more is waiting."""
    object_bytes: int
    """The object is complete when it has this size,"""
    wal_bytes_max: int
    """or when it contains this much of the WAL."""
    child_bytes_min: int
    """With this much WAL waiting, the object is made in the child process."""
    epoch: int
    created_us: int
    unique: str
    backend: str
    sequence: int

    @property
    def waiting_bytes(self) -> int:
        """The size of the WAL from the cursor on."""
        return sum(file.end for file in self.files) - self.cursor.position


@dataclass(frozen=True, slots=True)
class MadeObject:
    """The result: an object, or links, or only the cursor if the frames contain no messages."""

    cursor: Cursor
    size_bytes: int
    more: bool
    """Whether much more may be waiting."""
    links: Sequence[LinkFrame] = ()
    entry: ObjectEntry | None = None
    data: Buffer = b""


async def make_object(
    request: ObjectRequest, disk: Disk, threads: WorkerThreads, child: Child
) -> MadeObject:
    """Make the next object in a thread or in the child process; raises OSError and ChildFailed."""
    with shared_memory() as memory:
        if request.waiting_bytes < request.child_bytes_min:
            result = await threads.run(make_here, request, disk, memory)
        else:
            result = await child.call(make_in_child, request, memory)
        return replace(result, data=mapped_view(memory))


def make_in_child(request: ObjectRequest, memory: SharedFile) -> MadeObject:
    """Make the next object in a process that yields the processor to publishers."""
    return make_here(request, Disk(), memory, CpuYield().pause)


def make_here(
    request: ObjectRequest,
    disk: Disk,
    memory: SharedFile,
    pause: Callable[[], None] = lambda: None,
) -> MadeObject:
    """Make the next object and write it to `memory`; calls `pause` between pieces of work."""
    deletions = request.deletions
    collected = _collect(request, disk, request.cursor)
    if collected.links:
        return MadeObject(collected.cursor, collected.size_bytes, True, collected.links)
    builder, size = ObjectBuilder(request.topic, request.cursor.frame, memory), 0
    while True:
        builder.add(collected, deletions)
        collected.batches.clear()  # Free the memory before the next ones are read.
        pause()
        cursor, size = collected.cursor, size + collected.size_bytes
        more = collected.size_bytes > request.collect_bytes // 2
        large = builder.size >= request.object_bytes
        if not more or large or size + request.collect_bytes > request.wal_bytes_max:
            break
        collected = _collect(request, disk, cursor)
        if not builder.can_add(collected, deletions.cover):
            break
    entry = builder.finish(
        request.epoch, request.created_us, request.unique, request.backend, request.sequence
    )
    return MadeObject(cursor, size, more, (), entry)


def _collect(request: ObjectRequest, disk: Disk, cursor: Cursor) -> Collected:
    deletions = request.deletions
    return collect(disk, request.files, cursor, request.collect_bytes, deletions.cover)
