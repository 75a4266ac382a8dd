"""A broker without protocols: logs, metadata, ownership and tiers over directories and stores that
outlive it.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.formats.bodies import ObjectRef
from penstock.host.child import Child
from penstock.host.entropy import unique_name
from penstock.host.threads import WorkerThreads
from penstock.log import Log, Logs, LogSettings, Ranges, SharedLimits
from penstock.metadata import MetadataKeys
from penstock.metadata.ownership import Epoch, LeaseTerms, Ownership
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import OffsetGone
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.objects import MemoryStore, ObjectStore
from penstock.tiers.counters import TierCounters
from penstock.tiers.manifest.entries import Head, ObjectEntry
from penstock.tiers.manifest.rebuild import load_manifest
from penstock.tiers.settings import TierSettings
from penstock.tiers.tier_host import TierHost
from penstock.tiers.tiers import Tiers
from penstock.tiers.topic_tier import TopicTier
from tests.faults import Crashed, FaultyMetadata, FaultyStore, Steps
from tests.log_reader import LogReader
from tests.unit.log.disks import Hand, Unsynced

TOPIC: Final = TopicName("default", "default", "t")
KEYS: Final = MetadataKeys()
P0: Final = PartitionId(0)
MERGE_NEVER: Final = 1 << 20

SETTINGS: Final = TierSettings(
    interval_seconds=0.05,
    batch_bytes_max=4 << 10,
    linger_seconds=0.01,
    look_seconds=0.002,
    object_bytes_max=64 << 10,
    object_seconds_max=1e9,
    merge_objects_min=MERGE_NEVER,
    trash_seconds=60,
    retry_seconds=0.001,
    retry_seconds_max=0.004,
    wal_seconds_min=0,
    wal_bytes_min=0,
    reserve_offsets=1000,
)
"""Small limits; by default no objects are merged and each is complete after one batch."""

LEASE_SECONDS: Final = 60
"""Long enough that a stalled disk of a busy machine does not end a lease."""

LOG_SETTINGS: Final = LogSettings(file_bytes_max=8 << 10, idle_seconds=0.01)


class Broker:
    """One broker's life, from its start to its end or crash."""

    def __init__(self, world: World, name: str, directory: Path, settings: TierSettings) -> None:
        self.world, self.name, self.directory = world, name, directory
        self.store = FaultyStore(world.bucket)
        self.metadata = FaultyMetadata(world.metadata)
        self.logs = Logs(
            directory, world.log_settings, SharedLimits(reserve_bytes=4096), Unsynced(), world.clock
        )
        self.ownership = Ownership(
            self.metadata, KEYS, name, "address", self._on_lost, LeaseTerms(seconds=LEASE_SECONDS)
        )
        self.counters = TierCounters()
        self.threads = WorkerThreads(2, f"tier-{name}")
        self.child = Child()
        self.host = TierHost(
            self.store, settings, world.clock, self.threads, self.child, self.counters
        )
        self.tiers = Tiers(self.host, self.logs, self.metadata, KEYS, self.ownership, name)
        self.lost: list[TopicName] = []
        self._ended = False

    async def open(self) -> None:
        await self.logs.open()
        await self.ownership.start()

    def use_steps(self) -> Steps:
        """Count the calls to both stores as one sequence from now on."""
        steps = Steps()
        self.store.steps = self.metadata.steps = steps
        return steps

    async def tier(
        self,
        topic: TopicName = TOPIC,
        limits: TopicRetention | None = None,
        durability: Durability | None = None,
    ) -> TopicTier:
        """Own the topic; with a durability, its log is created first if there is none."""
        if durability is not None and self.logs.get(topic) is None:
            await self.logs.create(topic, durability)
        return await self.tiers.add(topic, limits)

    async def stop(self) -> None:
        """Stop in an orderly way."""
        if not self._ended:
            self._ended = True
            await self.tiers.close()
            await self.logs.close()
            await self.ownership.close()
            await self.child.close()
            await self.threads.close()

    async def crash(self) -> Path:
        """Kill the broker; returns a copy of its directory at that moment.

        The lease remains, as after a real crash, until the next broker of this name takes over.
        """
        copy = self.world.new_directory(self.name)
        for log in self.logs:
            # No thread may write while the directory is copied.
            await log.writer.flush()
            await indexed(log)
            await log.writer.flush()
        _copy(self.directory, copy)
        await self.drop()
        return copy

    async def drop(self) -> None:
        """Stop without uploading and without releasing the ownership."""
        if self._ended:
            return
        self._ended = True
        for topic in self.tiers.topics:
            maintenance = self.tiers.maintenance(topic)
            maintenance.cancel()
            await maintenance.drain()
        self.ownership._closed = True
        if self.ownership._keeper is not None:
            await self.ownership._keeper.close()
        await self.logs.close()
        await self.child.close()
        await self.threads.close()

    def _on_lost(self, topic: TopicName, epoch: Epoch, reason: str) -> None:
        self.lost.append(topic)
        self.tiers.lost(topic, reason)


class World:
    """The environment of brokers: the bucket, the metadata store, the clock, directories."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self.clock = Hand()
        self.bucket: ObjectStore = MemoryStore()
        self.log_settings = LOG_SETTINGS
        self.metadata: SqliteMetadata
        self._brokers: list[Broker] = []
        self._directories = 0

    async def open(self) -> None:
        self.metadata = await SqliteMetadata.open(self._root / "metadata")

    def new_directory(self, name: str) -> Path:
        self._directories += 1
        return self._root / f"{name}-{self._directories}"

    async def broker(
        self,
        directory: Path | None = None,
        name: str = "b1",
        settings: TierSettings = SETTINGS,
        **changes: Any,
    ) -> Broker:
        """A running broker; `changes` are changes of its settings."""
        directory = directory or self.new_directory(name)
        unless_asked = {
            "backlog_bytes_max": changes.get("batch_bytes_max", settings.batch_bytes_max)
        }
        broker = Broker(self, name, directory, replace(settings, **{**unless_asked, **changes}))
        self._brokers.append(broker)
        await broker.open()
        return broker

    async def depose(self, topic: TopicName = TOPIC) -> None:
        """End the owner's lease in the metadata store without the owner's knowledge."""
        await self.metadata.delete(KEYS.owner(topic))

    async def manifest(self, topic: TopicName = TOPIC) -> tuple[Head, list[ObjectEntry]]:
        """The manifest in the metadata store."""
        head, entries = await load_manifest(self.metadata, KEYS, topic)
        return head or Head(), entries

    async def raw_metadata(self, topic: TopicName = TOPIC) -> dict[str, bytes]:
        """Every key of a topic except its owner's."""
        page = await self.metadata.range(KEYS.topic(topic))
        return {e.key: e.value for e in page.entries if not e.key.endswith("/owner")}

    async def rows(self, entry: ObjectEntry) -> list[dict[str, Any]]:
        """The rows of an object, read with pyarrow only."""
        data = await self.bucket.get(entry.object_id)
        rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
        return rows

    async def keys(self, prefix: str = "topics/") -> list[str]:
        """The keys in the bucket."""
        return [info.key async for info in self.bucket.list(prefix)]

    async def close(self) -> None:
        for broker in self._brokers:
            await broker.drop()
        await self.metadata.close()


@asynccontextmanager
async def nothing_uncaught() -> AsyncIterator[None]:
    """Fail if a task has ended with an exception that was not retrieved."""
    troubles: list[Mapping[str, Any]] = []
    loop = asyncio.get_running_loop()

    def note(_: object, context: Mapping[str, Any]) -> None:
        # A simulated crash ends tasks as the end of a process would.
        if not isinstance(context.get("exception"), Crashed):
            troubles.append(context)

    loop.set_exception_handler(note)
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert not troubles, troubles


async def started(world: World, **settings: Any) -> tuple[Broker, TopicTier]:
    """A broker with these settings, and the tier of a new topic."""
    broker = await world.broker(**settings)
    return broker, await broker.tier()


async def flush(tier: TopicTier) -> None:
    """Upload everything."""
    while await tier.upload_round():
        pass


def spans(entries: Iterable[ObjectEntry]) -> list[tuple[int, int]]:
    """The first and the next offset of each entry."""
    return [(entry.start_offset, entry.end_offset + 1) for entry in entries]


def entry(*ranges: PartitionRange, sequence: int = 0, **changes: Any) -> ObjectEntry:
    """An entry of an object that need not exist, with one frame."""
    made = ObjectEntry(
        object_id=f"object-{sequence}",
        start_offset=min((r.first for r in ranges), default=0),
        end_offset=max((r.next for r in ranges), default=1) - 1,
        size=100,
        etag=None,
        created_at=0,
        completed=True,
        upload_id=None,
        backend="memory",
        sequence=sequence,
        ranges=list(ranges),
        rows=sum(r.next - r.first for r in ranges),
        crc32c=0,
        footer_bytes=50,
        footer_crc32c=0,
        first_timestamp=0,
        last_timestamp=0,
        epoch=1,
        first_frame=sequence,
        next_frame=sequence + 1,
    )
    return msgspec.structs.replace(made, **changes)


def payload(offset: int, partition: int = 0) -> bytes:
    """The payload that `fill` appends at this offset: unique, and hardly compressible."""
    return b"%d/%d:" % (partition, offset) + bytes((offset * 7 + i * i) % 251 for i in range(40))


async def fill(log: Log, count: int, partition: int = 0, run: int = 5) -> None:
    """Append messages `payload(offset)`, a few at a time, each run in a frame of its own."""
    for start in range(0, count, run):
        first = log.next_offset(PartitionId(partition))
        size = min(run, count - start)
        payloads = [payload(first + i, partition) for i in range(size)]
        subjects = [b"s.%d" % (i % 3) for i in range(size)]
        await log.append(Run(subjects, payloads, partition=PartitionId(partition)))


async def read_batches(tier: TopicTier, start: int = 0, partition: int = 0) -> list[Batch]:
    """All batches from `start` to the head, read without the cache."""
    log, p = tier.log, PartitionId(partition)
    log._tail.clear()
    reader = LogReader(log, p, Offset(start), objects=tier.read)
    found: list[Batch] = []
    while _next_live(log, p, reader.next_offset) < log.next_offset(p):
        try:
            found.append(await anext(reader))
        except OffsetGone as gone:
            reader.next_offset = gone.earliest
    return found


async def read_all(tier: TopicTier, start: int = 0, partition: int = 0) -> list[tuple[int, bytes]]:
    """Offset and payload of every message from `start` to the head."""
    return [row for batch in await read_batches(tier, start, partition) for row in rows_of(batch)]


def rows_of(batch: Batch) -> list[tuple[int, bytes]]:
    """Offset and payload of every message of a raw batch."""
    assert isinstance(batch.content, Columns)
    return list(zip(batch.offsets().tolist(), batch.content.payload.to_pylist(), strict=True))


def filled(offsets: Iterable[int], partition: int = 0) -> list[tuple[int, bytes]]:
    """Offsets and payloads that `fill` appends at these offsets."""
    return [(offset, payload(offset, partition)) for offset in offsets]


async def indexed(log: Log) -> None:
    """Wait until the subject index covers every finished file, since files remain until then."""
    async with asyncio.timeout(10):
        while log.index.unapplied:
            await asyncio.sleep(0.001)


async def drop_wal(tier: TopicTier) -> None:
    """Remove all messages appended so far from the WAL, uploaded or not."""
    tier.log.rotate()
    await tier.log.settle(b"", 0)
    tier.log.state.settle_floor = None
    await indexed(tier.log)
    await tier.log.prune(tier.log.files.all()[:-1])
    assert all(tier.log.files.start(p) == tier.log.next_offset(p) for p in tier.log.partitions())


async def verify(world: World, tier: TopicTier, live: Mapping[int, Iterable[int]]) -> None:
    """These messages and no others are read, each once and in order, whatever tier has them; and
    the manifest names whole objects, without overlap or a gap that is not recorded.
    """
    for partition, offsets in live.items():
        assert await read_all(tier, partition=partition) == filled(offsets, partition)
    ends: dict[int, int] = {}
    _, entries = await world.manifest(tier.topic)
    for entry in entries:
        data = await world.bucket.get(entry.object_id)
        assert (len(data), crc32c(data)) == (entry.size, entry.crc32c)
        rows = [_place(entry, n, row) for n, row in enumerate(await world.rows(entry))]
        assert rows == [(p, n, payload(n, p)) for p, n, _ in sorted(rows)]
        assert len(rows) == entry.rows
        for span in entry.ranges:
            gap = PartitionRange(span.partition, ends.get(span.partition, span.first), span.first)
            assert gap.first <= gap.next
            assert tier.log.state.gap_is_recorded(gap)
            ends[span.partition] = span.next
            mine = {n for p, n, _ in rows if p == span.partition}
            inside = set(range(span.first, span.next))
            assert set(live.get(span.partition, ())) & inside <= mine <= inside
    assert len({entry.object_id for entry in entries}) == len(entries)


async def stage(world: World, table: pa.Table, group_rows: int = 4) -> ObjectRef:
    """Put a Parquet file into the bucket as another engine does, without a broker."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group_rows, write_page_checksum=True)
    data = sink.getvalue().to_pybytes()
    key = f"staging/{unique_name()}.parquet"
    info = await world.bucket.put(key, [data])
    return ObjectRef(key, table.num_rows, len(data), crc32c(data), info.etag)


async def stage_fill(world: World, first: int, count: int, partition: int = 0) -> ObjectRef:
    """Stage rows with the payloads of `fill` for these offsets."""
    payloads = [payload(n, partition) for n in range(first, first + count)]
    return await stage(world, pa.table({"payload": pa.array(payloads, pa.binary())}))


async def link_fill(
    world: World, tier: TopicTier, epoch: int, rows: Mapping[int, Sequence[int]]
) -> Ranges:
    """Link objects with these numbers of rows, by partition, instead of `fill`."""
    objects: dict[PartitionId, list[ObjectRef]] = {}
    for partition, counts in rows.items():
        first = tier.log.next_offset(PartitionId(partition))
        refs = objects.setdefault(PartitionId(partition), [])
        for count in counts:
            refs.append(await stage_fill(world, first, count, partition))
            first = Offset(first + count)
    return await tier.link("app", epoch, objects)


def _place(entry: ObjectEntry, row: int, content: Mapping[str, Any]) -> tuple[int, int, bytes]:
    """Partition, offset and payload of a row; in linked objects, by row number."""
    if entry.linked:
        return entry.ranges[0].partition, entry.start_offset + row, content["payload"]
    return content["partition"], content["offset"], content["payload"]


def _next_live(log: Log, partition: PartitionId, offset: int) -> int:
    return log.state.next_live(partition, Offset(max(offset, log.start_offset(partition))))


def _copy(directory: Path, copy: Path) -> None:
    """Copy again if a file was deleted meanwhile, so that the copy is of one moment."""
    try:
        shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.tmp"))
    except shutil.Error as error:
        if any(Path(source).exists() for source, *_ in error.args[0]):
            raise
        shutil.rmtree(copy)
        _copy(directory, copy)
