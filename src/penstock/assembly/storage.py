"""Builds the storage of a broker: logs, metadata, ownership, object stores and tiers.

`open` opens metadata, the lease, the logs and the tiers in this order; `close` reverses it, so that
the last acknowledged messages are uploaded before ownership ends. `Topics` finds the topics.

With mode `memory` every topic is in memory; the few files that the broker needs are in a temporary
directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from penstock.config import Address, CloudSection, Config
from penstock.formats.bodies import ObjectRef
from penstock.formats.plan_api import StoreReply
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.entropy import unique_name
from penstock.host.threads import WorkerThreads
from penstock.log import Logs, LogSettings, SharedLimits, WhenFull
from penstock.metadata import Metadata, MetadataKeys, ProgressUpdater
from penstock.metadata.ownership import Epoch, LeaseTerms, Ownership
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model.errors import ConfigError
from penstock.model.metrics import Metric
from penstock.model.names import TopicName
from penstock.objects import ObjectStore, ObjectStoreError, Stores, open_store
from penstock.tiers import (
    BACKLOG_BYTES,
    Pressure,
    TierCounters,
    TierHost,
    Tiers,
    TierSettings,
    TopicTier,
    delete_abandoned_objects,
    replace_by_compacted,
)
from penstock.topics import TopicHost

BROKER_FILE: Final = "broker-id"
TIER_THREADS: Final = 2
UPLOAD_NICENESS: Final = 10
"""Uploads leave scarce processor time to publishers, as waiting messages are safe in the WAL."""
PROBE_SECONDS: Final = 10.0
"""Timeout of the first call to the bucket at start."""
_events = structlog.get_logger(__name__)


class Storage:
    """The storage of one broker between `open` and `close`."""

    def __init__(self, config: Config, address: Address | None = None) -> None:
        """`address` is the HTTP address that other brokers and fetch nodes use for this owner."""
        self._temporary: TemporaryDirectory[str] | None = None
        if config.storage.mode == "memory":
            self._temporary = TemporaryDirectory(prefix="penstock-")
            config = in_memory(config, Path(self._temporary.name))
        self._config = config
        self._address = address or config.http.listen[0]
        self._keys = MetadataKeys(config.storage.etcd.namespace)
        self._data = Path(config.data)
        self.counters = TierCounters()
        self.logs = Logs(Path(config.wal_dir), log_settings(config), shared_limits(config))
        self._stores = Stores(bucket(config), config.storage.stores, self._data)
        self._store = self._stores.get("")
        self._threads = WorkerThreads(TIER_THREADS, "tier")
        self._child = Child(UPLOAD_NICENESS)
        self._metadata: Metadata | None = None
        self._ownership: Ownership | None = None
        self.tiers: Tiers | None = None

    async def open(self) -> None:
        """Open and recover all parts; raises StartRefused, or errors of the stores."""
        keys = self._keys
        broker = await self._threads.run(_broker_id, self._data)
        metadata = self._metadata = await open_metadata(self._config)
        address = str(self._address)
        ownership = self._ownership = Ownership(
            metadata, keys, broker, address, self._lost, lease_terms(self._config)
        )
        await ownership.start()
        await self.logs.start()
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
        """The parts that topics need; only while the storage is open."""
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
        """The description of the store with this name; empty for the broker's own."""
        return self._stores.described(store)

    async def compact(self, tier: TopicTier, keys: Sequence[str], ref: ObjectRef) -> None:
        """Replace objects in the manifest with an object that another engine has compacted."""
        assert self.tiers is not None
        async with self.tiers.undisturbed(tier.topic):
            await replace_by_compacted(tier, keys, ref, self._threads)

    async def sweep(self, tier: TopicTier) -> int:
        """Delete objects of a topic that can never enter its manifest; returns their number."""
        assert self.tiers is not None
        await self.tiers.flush(tier.topic)
        async with self.tiers.undisturbed(tier.topic):
            return await delete_abandoned_objects(tier)

    def metrics(self) -> list[Metric]:
        """The metrics of the logs and tiers."""
        tiers = [] if self.tiers is None else self.tiers.metrics()
        return [*self.logs.metrics(), *self.counters.metrics(), *tiers]

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Whether every log can be written, with the reasons for those that cannot."""
        return self.logs.ready()

    async def close(self) -> None:
        """Make all messages durable, upload them, and release the ownership of topics."""
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
        if self._temporary is not None:
            self._temporary.cleanup()

    async def _probe_store(self) -> None:
        """Warn if the bucket has no conditional writes; continue also if it does not reply."""
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
    """The updater that saves the positions of consumers."""
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
        open_files_max=wal.max_open_files,
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


def bucket(config: Config) -> CloudSection:
    """Settings of the default store: `storage.cloud` if the mode is `wal_cloud`, else local."""
    chosen = {"local_only": CloudSection(), "memory": CloudSection(backend="memory")}
    return chosen.get(config.storage.mode, config.storage.cloud)


async def open_metadata(config: Config) -> Metadata:
    """Open etcd if it has endpoints, else the embedded store in the data directory."""
    endpoints = config.storage.etcd.endpoints
    if not endpoints:
        return await SqliteMetadata.open(Path(config.data) / "metadata")
    from penstock.assembly.etcd import etcd_settings
    from penstock.metadata.etcd import EtcdMetadata

    return EtcdMetadata(etcd_settings(config))


def lease_terms(config: Config) -> LeaseTerms:
    """The terms of the broker's lease; raises ConfigError."""
    etcd = config.storage.etcd
    try:
        return LeaseTerms(etcd.lease_seconds, etcd.lease_margin_ms / 1000, etcd.stall_limit_seconds)
    except ConfigError as error:
        raise ConfigError(f"storage.etcd.lease_seconds and lease_margin_ms: {error}") from None


def in_memory(config: Config, directory: Path) -> Config:
    """The configuration with all files in another directory; raises ConfigError with etcd."""
    if config.storage.etcd.endpoints:
        raise ConfigError("storage.mode memory has no use for storage.etcd.endpoints; leave it out")
    wal = replace(config.storage.wal, dir="")
    return replace(config, data=str(directory), storage=replace(config.storage, wal=wal))


def _broker_id(data: Path) -> str:
    """The unique id of this broker, which is created once and stored in the data directory."""
    path = data / BROKER_FILE
    if not path.exists():
        disk = Disk()
        disk.close(disk.create(path, [unique_name().encode()]))
    return path.read_text().strip()
