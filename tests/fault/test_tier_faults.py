"""The tiers of a topic on an S3 server behind a network that fails in every way.

Whatever happens to requests: the manifest has no gap and no overlap, a local file goes only when
other tools read all of it from the bucket, readers get everything once and in order, and nothing is
left behind that nobody knows of.
"""

import asyncio
import hashlib
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.assembly import storage
from penstock.config import Config
from penstock.config.storage_settings import StorageSection as Tiered
from penstock.host.disk import Disk
from penstock.log import scan_file
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model.run import Run
from penstock.model.units import PartitionId
from penstock.objects import StoreUnavailable
from penstock.objects.transfer import TransferLimits
from penstock.tiers.settings import TierSettings
from penstock.tiers.topic_tier import TopicTier
from tests.eventually import eventually
from tests.fault.bucket import Bucket, Entry, ends, entries_of
from tests.fault.tier_broker import TIER, TOPIC, UNMERGED, TierBroker, read_all, running
from tests.servers.fault_proxy import Fault, FaultProxy, Kind
from tests.servers.s3 import HASTY, S3Server, make_store

PARTITIONS = (0, 1, 2)
PART_BYTES = 5 << 20
SMALL_BYTES, LARGE_BYTES = 60, 600_000
TIMES = 4
"""One request with all its retries, and the first of the next."""
ALWAYS = 1_000_000

BROKEN = {
    "500": Fault(Kind.STATUS, number=500),
    "503": Fault(Kind.STATUS, number=503),
    "429": Fault(Kind.STATUS, number=429),
    "reset before": Fault(Kind.RESET_BEFORE),
    "reply lost": Fault(Kind.RESET_AFTER),
    "hang": Fault(Kind.HANG_BEFORE),
    "hang after": Fault(Kind.HANG_AFTER),
}
WRITING = {**BROKEN, "flipped bit": Fault(Kind.FLIP_REQUEST)}
READING = {
    **BROKEN,
    "truncated": Fault(Kind.TRUNCATE),
    "flipped bit": Fault(Kind.FLIP),
    "dripping": Fault(Kind.DRIP, seconds=0.4),
}
STEPS = {
    "begin": ("POST", "?uploads"),
    "part": ("PUT", "partNumber=2"),
    "complete": ("POST", "Id="),
}


def at(fault: Fault, method: str, path_part: str, times: int = TIMES) -> Fault:
    """A fresh copy of the fault for such requests."""
    return replace(fault, method=method, path_part=path_part, times=times, hits=0)


def payload(partition: int, offset: int, size_bytes: int) -> bytes:
    """What is published there; different everywhere, and it does not compress away."""
    if size_bytes == SMALL_BYTES:
        return hashlib.sha512(b"%d/%d" % (partition, offset)).digest()[:size_bytes]
    return random.Random(partition << 32 | offset).randbytes(size_bytes)


class Watched(Disk):
    """Looks at every local file of the log before it goes."""

    def __init__(self, look: Callable[[Path], None]) -> None:
        self._look = look

    def remove(self, path: Path) -> None:
        if path.suffix == ".log":
            self._look(path)
        super().remove(path)


class Topic:
    """A topic under load on a server behind a proxy, and what must be true of it."""

    def __init__(
        self,
        directory: Path,
        server: S3Server,
        proxy: FaultProxy,
        metadata: SqliteMetadata,
        settings: TierSettings,
        size_bytes: int,
    ) -> None:
        prefix = uuid.uuid4().hex
        limits = TransferLimits(PART_BYTES, parts_in_flight=2)
        self._large = size_bytes == LARGE_BYTES
        calls = HASTY._replace(request_seconds=1.0, call_seconds=6.0) if self._large else HASTY
        place = (server.bucket, proxy.url, prefix, calls, limits)
        self._bucket = Bucket(server.files(), f"{server.bucket}/{prefix}")
        self._loop = asyncio.get_running_loop()
        self._size_bytes = size_bytes
        self._load: list[asyncio.Task[None]] = []
        self._ending = False
        self._directory, self._place, self._settings = directory, place, settings
        self.broker = self._make(metadata)
        self.published = dict.fromkeys(PARTITIONS, 0)
        self.dropped = 0
        self.early: list[str] = []
        self.tier: TopicTier

    def _make(self, metadata: SqliteMetadata) -> TierBroker:
        store, disk = make_store(*self._place), Watched(self._look)
        return TierBroker(self._directory, store, metadata, self._settings, disk=disk)

    async def begin(self, followed: bool) -> None:
        self.tier = await self.broker.tiers.add(TOPIC)
        self._load = [asyncio.create_task(self._publish(p)) for p in PARTITIONS]
        if followed:
            self._load += [asyncio.create_task(self._follow(p)) for p in PARTITIONS]

    def reopen(self, metadata: SqliteMetadata) -> None:
        """Another life on the same disk."""
        self._ending = False
        self.broker = self._make(metadata)

    async def cool_down(self) -> None:
        """Nothing is published any more, and the oldest messages are in the bucket alone."""

        async def dropped() -> bool:
            return self.dropped > 3

        await eventually(dropped)
        await self.end_load()
        await self.broker.tiers.flush(TOPIC)

    async def end_load(self) -> None:
        """Publish and follow no more; raises what went wrong there."""
        self._ending = True
        await asyncio.gather(*self._load)

    async def abandon_load(self) -> None:
        """Whatever went wrong: nobody uses the topic when it closes."""
        for task in self._load:
            task.cancel()
        await asyncio.gather(*self._load, return_exceptions=True)

    async def entries(self) -> list[Entry]:
        page = await self.broker.metadata.range(self.broker.keys.objects(TOPIC))
        assert not page.more
        return entries_of(entry.value for entry in page.entries)

    async def read(self, partition: int) -> None:
        """Everything is read once and in order, though the store may be away at times."""
        least, expected = self.published[partition], 0
        async for offset, content in read_all(self.tier, partition):
            assert (offset, content) == (expected, self._payload(partition, expected))
            expected += 1
        assert expected >= least

    async def verify(self) -> None:
        """After the faults: everything is in the bucket, in order, and nothing else is."""
        await self.broker.tiers.flush(TOPIC)
        entries = await self.entries()
        assert ends(entries) == self.published
        rows = await asyncio.to_thread(self._bucket.rows, entries)
        assert rows == {
            (p, n): self._payload(p, n) for p in PARTITIONS for n in range(self.published[p])
        }
        for partition in PARTITIONS:
            await self.read(partition)
        assert not self.early
        assert not self.tier.log.status().missing, "what was dropped was taken for lost"
        await eventually(self._is_tidy)

    async def _is_tidy(self) -> bool:
        """Whether the bucket has the objects of the manifest and no others."""
        await self.broker.tiers.upkeep(TOPIC)
        named = {entry["object_id"] for entry in await self.entries()}
        return await asyncio.to_thread(self._bucket.data_objects) == named

    async def _publish(self, partition: int) -> None:
        while not self._ending:
            first = self.published[partition]
            size = 1 if self._large else 5
            payloads = [self._payload(partition, first + n) for n in range(size)]
            run = Run(b"s", payloads, partition=PartitionId(partition))
            given = await self.tier.log.append(run)
            assert given.first == first
            self.published[partition] = given.next
            await asyncio.sleep(0.2 if self._large else 0.03)

    async def _follow(self, partition: int) -> None:
        """Read again and again from the first offset; an outage is told as one, not as damage."""
        while not self._ending:
            with suppress(StoreUnavailable):
                await self.read(partition)
            await asyncio.sleep(0.05)

    def _payload(self, partition: int, offset: int) -> bytes:
        return payload(partition, offset, self._size_bytes)

    def _look(self, path: Path) -> None:
        """In a thread: every message of the file is in an object, as other tools read it."""
        future = asyncio.run_coroutine_threadsafe(self.entries(), self._loop)
        rows = self._bucket.rows(future.result())
        partitions, firsts, nexts, *_ = scan_file(Disk(), path, None, 0).table().columns()
        for partition, first, next_ in zip(partitions, firsts, nexts, strict=True):
            for offset in range(first, next_):
                if rows.get((partition, offset)) != self._payload(partition, offset):
                    self.early.append(f"{path.name}: partition {partition}, offset {offset}")
        self.dropped += 1


@asynccontextmanager
async def topic_on(
    directory: Path,
    server: S3Server,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    settings: TierSettings = TIER,
    size_bytes: int = SMALL_BYTES,
    followed: bool = True,
) -> AsyncIterator[Topic]:
    metadata = await SqliteMetadata.open(directory / "metadata")
    topic = Topic(directory, server, proxy, metadata, settings, size_bytes)
    async with running(topic.broker):
        await topic.begin(followed)
        try:
            yield topic
        finally:
            await topic.abandon_load()


async def survive(topic: Topic, proxy: FaultProxy, faults: Iterable[Sequence[Fault]]) -> None:
    """The load goes on while these strike, some after the others; then look at what is there."""
    for some in faults:
        proxy.inject(*some)

        async def all_struck(some: Sequence[Fault] = some) -> bool:
            return all(fault.hits == fault.times for fault in some)

        await eventually(all_struck)
    before = topic.dropped

    async def goes_on() -> bool:
        return topic.dropped > before + 1

    await eventually(goes_on)
    await topic.end_load()
    await topic.verify()


@pytest.mark.feature("T15", "T17", "T19", "T20")
async def test_no_fault_of_a_put_leaves_a_gap_or_prunes_early(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FaultProxy(seaweedfs.port) as proxy,
        topic_on(tmp_path, seaweedfs, proxy, monkeypatch) as topic,
    ):
        await survive(topic, proxy, [[at(fault, "PUT", "/data-")] for fault in WRITING.values()])


@pytest.mark.feature("T13", "T15", "T16", "T17", "T20")
async def test_nor_does_it_on_a_server_that_checks_nothing(
    tmp_path: Path, rclone: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FaultProxy(rclone.port) as proxy,
        topic_on(tmp_path, rclone, proxy, monkeypatch) as topic,
    ):
        await survive(topic, proxy, [[at(fault, "PUT", "/data-")] for fault in WRITING.values()])


@pytest.mark.feature("T14", "T15", "T17", "T20")
@pytest.mark.parametrize("fault", WRITING.values(), ids=WRITING.keys())
async def test_no_fault_of_any_step_of_an_upload_in_parts_leaves_a_gap(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    size = PART_BYTES + (1 << 20)
    in_parts = replace(
        UNMERGED, interval_seconds=3600, batch_bytes_max=size, backlog_bytes_max=size
    )
    async with (
        FaultProxy(seaweedfs.port) as proxy,
        topic_on(
            tmp_path, seaweedfs, proxy, monkeypatch, in_parts, LARGE_BYTES, followed=False
        ) as topic,
    ):
        await survive(topic, proxy, [[at(fault, *step) for step in STEPS.values()]])


@pytest.mark.feature("T15", "T16", "T17", "T20")
async def test_no_fault_of_a_get_leaves_a_gap_or_prunes_early(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FaultProxy(seaweedfs.port) as proxy,
        topic_on(tmp_path, seaweedfs, proxy, monkeypatch, followed=False) as topic,
    ):
        await survive(topic, proxy, [[at(fault, "GET", "/data-")] for fault in READING.values()])


@pytest.mark.feature("T15", "T18")
async def test_no_fault_of_a_listing_leaves_a_gap_or_prunes_early(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FaultProxy(seaweedfs.port) as proxy,
        topic_on(tmp_path, seaweedfs, proxy, monkeypatch) as topic,
    ):
        await survive(topic, proxy, [[at(fault, "GET", "list-type")] for fault in READING.values()])


@pytest.mark.feature("T09", "T15", "T16")
async def test_a_fault_of_a_cold_read_is_told_as_an_outage_and_reading_goes_on(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FaultProxy(seaweedfs.port) as proxy,
        topic_on(tmp_path, seaweedfs, proxy, monkeypatch, UNMERGED) as topic,
    ):
        await topic.cool_down()
        for fault in (at(fault, "GET", "/data-") for fault in READING.values()):
            if fault.kind is not Kind.FLIP:
                proxy.inject(fault)
                while fault.hits < fault.times:
                    with suppress(StoreUnavailable):
                        await topic.read(PARTITIONS[0])
        # Of a footer, of rows, and of the next object's footer.
        for skip in range(3):
            topic.tier.objects._footers.clear()
            flip = Fault(Kind.FLIP, "GET", "/data-", skip=skip)
            proxy.inject(flip)
            await topic.read(PARTITIONS[0])
            assert flip.hits == 1


@pytest.mark.feature("T15")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_uploads_are_not_slowed_down_by_upkeep_that_fails(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A bucket whose policy lets us write and read, but neither list nor remove."""
    hour = replace(TIER, retry_seconds=3600, retry_seconds_max=3600, trash_seconds=0)
    async with (
        FaultProxy(seaweedfs.port) as proxy,
        topic_on(tmp_path, seaweedfs, proxy, monkeypatch, hour) as topic,
    ):
        part = "list-type" if method == "GET" else "/"
        fault = Fault(Kind.STATUS, method, part, times=ALWAYS, number=403)
        proxy.inject(fault)

        async def failed() -> bool:
            return fault.hits > 0

        await eventually(failed)
        for _ in range(3):
            published = dict(topic.published)

            async def uploaded(published: dict[int, int] = published) -> bool:
                found = ends(await topic.entries())
                return all(found.get(p, 0) > end for p, end in published.items())

            await eventually(uploaded)
        await topic.end_load()


@pytest.mark.feature("T07", "T14", "T15")
async def test_a_broker_that_starts_while_the_bucket_is_away_takes_messages(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultProxy(seaweedfs.port) as proxy:
        async with topic_on(tmp_path, seaweedfs, proxy, monkeypatch) as topic:
            fault = Fault(Kind.STATUS, "GET", "/data-", times=ALWAYS, number=503)
            proxy.inject(fault)

            async def failed() -> bool:
                return fault.hits > TIMES

            await eventually(failed)
            proxy.inject(Fault(Kind.RESET_BEFORE, times=ALWAYS))
            await topic.end_load()
        metadata = await SqliteMetadata.open(tmp_path / "metadata")
        topic.reopen(metadata)
        async with running(topic.broker):
            await topic.begin(followed=True)
            before = dict(topic.published)

            async def goes_on() -> bool:
                return all(topic.published[p] > end for p, end in before.items())

            await eventually(goes_on)
            proxy.clear()
            await topic.end_load()
            await topic.verify()


@pytest.mark.feature("T15")
async def test_a_bucket_that_hangs_does_not_keep_a_broker_from_starting_nor_from_ending(
    tmp_path: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PROBE_SECONDS", 0.2)
    settings = storage.tier_settings

    def closing_in(seconds: float) -> None:
        """Let a broker that stops wait this long for uploads."""
        monkeypatch.setattr(
            storage,
            "tier_settings",
            lambda config: replace(settings(config), close_seconds=seconds),
        )

    closing_in(0.2)
    async with FaultProxy(seaweedfs.port) as proxy:
        cloud = seaweedfs.cloud(port=proxy.port)
        config = Config(data=str(tmp_path), storage=Tiered(mode="wal_cloud", cloud=cloud))
        proxy.inject(Fault(Kind.HANG_BEFORE, times=ALWAYS))
        await publish_and_end(config, 0)
        closing_in(60.0)
        proxy.clear()
        await publish_and_end(config, 1)
        bucket = Bucket(seaweedfs.files(), cloud.root.removeprefix("s3://"))
        assert len(await asyncio.to_thread(bucket.data_objects)) == 1


async def publish_and_end(config: Config, first: int) -> None:
    """The life of a whole broker, in which one message is published at this offset."""
    broker = storage.Storage(config)
    await broker.open()
    assert broker.tiers is not None
    tier = await broker.tiers.add(TOPIC)
    assert (await tier.log.append(Run(b"s", [b"safe"]))).first == first
    await broker.close()
