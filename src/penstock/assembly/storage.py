"""Everything that keeps messages: logs, metadata, ownership, objects and the tiers between them.

Up: metadata, the lease, the logs, the tiers; which topics there are is for Topics to find out. Down
is the reverse, so that what is acknowledged last is still uploaded, and ownership goes last.

With mode `memory` every topic lives in memory, and what must be a file lies in a directory that
goes with the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from penstock.config import Address, Config
from penstock.config.settings import Cloud
from penstock.formats.bodies import ObjectRef
from penstock.formats.plan_api import StoreReply
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.entropy import unique_name
from penstock.host.threads import Workers
from penstock.log.logs import Logs, SharedLimits
from penstock.log.settings import LogSettings, WhenFull
from penstock.metadata.interface import Metadata
from penstock.metadata.keys import Keys
from penstock.metadata.ownership import Epoch, Ownership
from penstock.metadata.progress import ProgressUpdater
from penstock.metadata.sqlite import SqliteMetadata
from penstock.metadata.tenure import Terms
from penstock.model.errors import ConfigError
from penstock.model.names import TopicName
from penstock.objects.factory import open_store
from penstock.objects.interface import ObjectStore, ObjectStoreError
from penstock.objects.stores import Stores
from penstock.tiers import leftovers
from penstock.tiers.compaction import swap
from penstock.tiers.counters import TierCounters
from penstock.tiers.settings import BACKLOG_BYTES, Pressure, TierSettings
from penstock.tiers.tier import TierHost, TopicTier
from penstock.tiers.tiers import Tiers
from penstock.topics.host import TopicHost

BROKER_FILE: Final = "broker-id"
TIER_THREADS: Final = 2
UPLOAD_NICENESS: Final = 10
"""Where there is not enough for both, publishers come before uploads: the WAL has what waits."""
PROBE_SECONDS: Final = 10.0
"""How long a start waits for the bucket."""
_events = structlog.get_logger(__name__)


class Storage:
    """The storage of one broker, for the time between `open` and `close`."""

    def __init__(self, config: Config, address: Address | None = None) -> None:
        """`address` is that of the HTTP door, for whoever asks who owns a topic."""
        self._aside: TemporaryDirectory[str] | None = None
        if config.storage.mode == "memory":
            self._aside = TemporaryDirectory(prefix="penstock-")
            config = in_memory(config, Path(self._aside.name))
        self._config = config
        self._address = address or config.http.listen
        self._keys = Keys(config.storage.etcd.namespace)
        self._data = Path(config.data)
        self.counters = TierCounters()
        self.logs = Logs(Path(config.wal_dir), log_settings(config), shared_limits(config))
        self._stores = Stores(bucket(config), config.storage.stores, self._data)
        self._store = self._stores.get("")
        self._threads = Workers(TIER_THREADS, "tier")
        self._child = Child(UPLOAD_NICENESS)
        self._metadata: Metadata | None = None
        self._ownership: Ownership | None = None
        self.tiers: Tiers | None = None

    async def open(self) -> None:
        """Recover everything; raises StartRefused or what a store raises when it cannot."""
        keys = self._keys
        broker = await self._threads.run(_broker_id, self._data)
        metadata = self._metadata = await open_metadata(self._config)
        address = str(self._address)
        ownership = self._ownership = Ownership(
            metadata, keys, broker, address, self._lost, terms(self._config)
        )
        await ownership.start()
        await self.logs.open()
        await self._probe_store()
        host = TierHost(
            self._store,
            tier_settings(self._config),
            Clock(),
            self._threads,
            self._child,
            self.counters,
        )
        self.tiers = Tiers(host, self.logs, metadata, keys, ownership, broker)
        await self.tiers.start()

    def topic_host(self) -> TopicHost:
        """What topics are made of; only while this is open."""
        assert self._metadata is not None
        assert self._ownership is not None
        assert self.tiers is not None
        return TopicHost(
            self.logs,
            self.tiers,
            self._metadata,
            self._keys,
            self._ownership,
            self._store,
            Clock(),
            self._config.storage.mode == "memory",
            self._stores.get,
        )

    def described(self, store: str) -> StoreReply:
        """Where a store is, by its name in `storage.stores`, empty for the broker's own."""
        return self._stores.described(store)

    async def compact(self, tier: TopicTier, keys: Sequence[str], ref: ObjectRef) -> None:
        """Let an object that was made elsewhere count in the place of others."""
        assert self.tiers is not None
        async with self.tiers.undisturbed(tier.topic):
            await swap(tier, keys, ref, self._threads)

    async def sweep(self, tier: TopicTier) -> int:
        """Remove objects of a topic that nobody can make count any more; how many."""
        assert self.tiers is not None
        await self.tiers.flush(tier.topic)
        async with self.tiers.undisturbed(tier.topic):
            return await leftovers.sweep(tier)

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Whether every log can be written, and what is wrong with those that cannot."""
        return self.logs.ready()

    async def close(self) -> None:
        """Make everything durable, upload what is left, give the topics back."""
        if self.tiers is not None:
            await self.tiers.close()
        await self.logs.close()
        if self._ownership is not None:
            await self._ownership.close()
        if self._metadata is not None:
            await self._metadata.close()
        await self._stores.close()
        await self._child.close()
        await self._threads.close()
        if self._aside is not None:
            self._aside.cleanup()

    async def _probe_store(self) -> None:
        """Learn what the bucket can do; one that does not answer now is not a reason to wait."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                enforced = await self._store.enforces_conditions()
        except (ObjectStoreError, TimeoutError) as error:
            _events.warning("object_store_not_answering", reason=str(error) or "no answer in time")
            return
        if not enforced:
            _events.warning("object_store_without_conditions", backend=self._store.backend)

    def _lost(self, topic: TopicName, epoch: Epoch, reason: str) -> None:
        if self.tiers is not None:
            self.tiers.lost(topic, reason)


def progress_of(config: Config, host: TopicHost) -> ProgressUpdater:
    """Keeps the positions of subscriptions."""
    progress = config.storage.progress
    return ProgressUpdater(
        host.metadata,
        host.keys,
        host.ownership.guard,
        progress.flush_interval_seconds,
        progress.min_offset_delta,
    )


def log_settings(config: Config) -> LogSettings:
    wal = config.storage.wal
    return LogSettings(
        file_bytes_max=wal.max_file_bytes,
        file_seconds_max=wal.max_file_seconds,
        frame_bytes_max=wal.max_batch_bytes,
        pending_bytes_max=wal.pending_bytes_max,
        when_full=WhenFull(wal.when_full),
        sync_delay_seconds=wal.fsync_interval_ms / 1000,
    )


def shared_limits(config: Config) -> SharedLimits:
    wal = config.storage.wal
    return SharedLimits(
        cache_bytes_max=wal.cache.max_bytes,
        cache_seconds_max=wal.cache.max_seconds,
        index_bytes_max=wal.index.max_bytes,
        reserve_bytes=wal.reserve_bytes,
    )


def tier_settings(config: Config) -> TierSettings:
    uploader, keep = config.storage.uploader, config.storage.wal.retention
    return TierSettings(
        interval_seconds=uploader.interval_seconds,
        batch_bytes_max=uploader.max_batch_bytes,
        backlog_bytes_max=max(uploader.max_batch_bytes, BACKLOG_BYTES),
        linger_seconds=uploader.linger_ms / 1000,
        uploads_at_once=uploader.uploads_at_once,
        object_bytes_max=uploader.rotation.max_object_bytes,
        object_seconds_max=uploader.rotation.max_object_seconds,
        trash_seconds=uploader.trash_seconds,
        wal_seconds_min=keep.min_minutes * 60,
        wal_bytes_min=keep.min_bytes,
        wal_bytes_max=keep.max_bytes,
        lag_bytes_max=uploader.max_lag_bytes,
        pressure=Pressure(uploader.when_behind),
    )


def open_objects(config: Config) -> ObjectStore:
    return open_store(bucket(config), Path(config.data))


def bucket(config: Config) -> Cloud:
    """The bucket: with mode `wal_cloud` as configured, else in the data directory or in memory."""
    chosen = {"local_only": Cloud(), "memory": Cloud(backend="memory")}
    return chosen.get(config.storage.mode, config.storage.cloud)


async def open_metadata(config: Config) -> Metadata:
    """etcd where endpoints are given, else embedded in the data directory."""
    endpoints = config.storage.etcd.endpoints
    if not endpoints:
        return await SqliteMetadata.open(Path(config.data) / "metadata")
    from penstock.assembly.etcd import etcd_settings
    from penstock.metadata.etcd import EtcdMetadata

    return EtcdMetadata(etcd_settings(config))


def terms(config: Config) -> Terms:
    """Of the lease that this broker owns its topics by; raises ConfigError."""
    etcd = config.storage.etcd
    try:
        return Terms(etcd.lease_seconds, etcd.lease_margin_ms / 1000)
    except ConfigError as error:
        raise ConfigError(f"storage.etcd.lease_seconds and lease_margin_ms: {error}") from None


def in_memory(config: Config, directory: Path) -> Config:
    """The same with everything that is written below another directory, and nothing in etcd."""
    if config.storage.etcd.endpoints:
        raise ConfigError("storage.mode memory has no use for storage.etcd.endpoints; leave it out")
    wal = replace(config.storage.wal, dir="")
    return replace(config, data=str(directory), storage=replace(config.storage, wal=wal))


def _broker_id(data: Path) -> str:
    """The name of this broker among others, made once and kept in the data directory."""
    path = data / BROKER_FILE
    if not path.exists():
        disk = Disk()
        disk.close(disk.create(path, [unique_name().encode()]))
    return path.read_text().strip()
