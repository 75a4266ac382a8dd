"""What a child runs: logs alone, or everything that keeps messages, on disks that can be aimed at.

The storage of a broker is built by its own assembly. Only its edges are exchanged here: the disks,
the metadata's transactions that a trigger is told of, and delays, which are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol
from unittest.mock import Mock, patch

from penstock.assembly import storage as assembly
from penstock.assembly.storage import Storage
from penstock.config import Config
from penstock.log import Log, Logs, LogSettings, SharedLimits
from penstock.metadata import Compare, DeleteKeys, Metadata, Put, TransactionResult
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model import names
from penstock.model.errors import PenstockError
from penstock.model.resources import Durability
from penstock.objects import stores as factory
from penstock.tiers import tiers as tiers_module
from penstock.tiers.settings import TierSettings
from tests.log_reader import ObjectSource
from tests.powercut.aim import Part, Trigger
from tests.powercut.bugs import BUGS, Parts
from tests.powercut.disks import DISKS
from tests.powercut.orders import Orders, TierOrders

METADATA: Final = "metadata"
OBJECTS: Final = "objects"
TICK_SECONDS: Final = 0.01


class Stored(Protocol):
    """What the load and the view use."""

    @property
    def logs(self) -> Logs: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def create(self, topic: str, cloud: bool) -> Log: ...
    def objects(self, log: Log) -> ObjectSource | None: ...
    def troubles(self) -> list[str]: ...


def storage_of(orders: Orders, trigger: Trigger) -> Stored:
    if orders.tiers is None:
        return LogsAlone(orders, trigger)
    return WithTiers(orders, orders.tiers, trigger)


class LogsAlone:
    """Logs, and nothing behind them."""

    def __init__(self, orders: Orders, trigger: Trigger) -> None:
        self.logs = _logs(Path(orders.directory) / "logs", orders, trigger)

    async def open(self) -> None:
        await self.logs.open()

    async def close(self) -> None:
        await self.logs.close()

    async def create(self, topic: str, cloud: bool) -> Log:
        assert not cloud
        return await self.logs.create(names.topic(topic))

    def objects(self, log: Log) -> ObjectSource | None:
        return None

    def troubles(self) -> list[str]:
        return []


class WithTiers:
    """The storage of a broker: logs, metadata, ownership, a bucket of files, tiers."""

    def __init__(self, orders: Orders, tiers: TierOrders, trigger: Trigger) -> None:
        self._directory, self._tiers, self._trigger = Path(orders.directory), tiers, trigger
        self._parts = BUGS[tiers.bug] if tiers.bug else Parts()
        config = Config(data=orders.directory)
        disk = self._parts.object_disk(trigger, Part.OBJECTS)
        make_logs = Mock(side_effect=lambda directory, *_: _logs(directory, orders, trigger))
        make_store = Mock(side_effect=lambda root: self._parts.store(root, disk))
        with (
            patch.object(assembly, "Logs", make_logs),
            patch.object(factory, "FileStore", make_store),
        ):
            self._storage = Storage(config)
        make_logs.assert_called_once()
        make_store.assert_called_once_with(self._directory / OBJECTS)

    @property
    def logs(self) -> Logs:
        return self._storage.logs

    async def open(self) -> None:
        patch.object(tiers_module, "TopicTier", self._parts.tier).start()
        with (
            patch.multiple(
                assembly, open_metadata=self._open_metadata, tier_settings=self._settings
            ),
            self._parts.metadata(),
        ):
            await self._storage.open()
            await self.logs.load_all()
            await self._take_up()

    async def close(self) -> None:
        await self._storage.close()

    async def create(self, topic: str, cloud: bool) -> Log:
        assert self._storage.tiers is not None
        name = names.topic(topic)
        log = await self.logs.create(name, Durability.CLOUD if cloud else Durability.FSYNC)
        await self._storage.tiers.add(name)
        return log

    def objects(self, log: Log) -> ObjectSource | None:
        assert self._storage.tiers is not None
        return self._storage.tiers[names.topic(log.topic)].read

    def troubles(self) -> list[str]:
        """Topics that are not served."""
        assert self._storage.tiers is not None
        served = self._storage.tiers.topics
        lost = [log for log in self.logs if names.topic(log.topic) not in served]
        return [f"{log.topic} is not served: {log.refusal}" for log in lost]

    async def _take_up(self) -> None:
        """Serve every topic that is on the disk; `troubles` tells of those that cannot be had."""
        assert self._storage.tiers is not None
        for log in list(self.logs):
            try:
                await self._storage.tiers.add(names.topic(log.topic))
            except PenstockError as error:
                log.refusal = str(error)

    async def _open_metadata(self, _: Config) -> Metadata:
        metadata = await AimedMetadata.open(self._directory / METADATA)
        assert isinstance(metadata, AimedMetadata)
        metadata.trigger = self._trigger
        return metadata

    def _settings(self, _: Config) -> TierSettings:
        tiers = self._tiers
        return TierSettings(
            interval_seconds=TICK_SECONDS,
            linger_seconds=TICK_SECONDS,
            look_seconds=TICK_SECONDS,
            upkeep_seconds=tiers.upkeep_seconds,
            batch_bytes_max=tiers.batch_bytes_max,
            backlog_bytes_max=2 * tiers.batch_bytes_max,
            object_bytes_max=tiers.object_bytes_max,
            object_seconds_max=0.2,
            merge_objects_min=4,
            trash_seconds=tiers.trash_seconds,
            retry_seconds=0.01,
            wal_seconds_min=0,
            wal_bytes_min=tiers.wal_bytes_min,
        )


class AimedMetadata(SqliteMetadata):
    """Metadata that tell a trigger every transaction."""

    trigger: Trigger

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        self.trigger.step(Part.METADATA, "before transaction")
        self.trigger.begin(Part.METADATA, "during transaction")
        outcome = await super().transaction(compares, changes)
        self.trigger.step(Part.METADATA, "after transaction")
        return outcome


def _logs(directory: Path, orders: Orders, trigger: Trigger) -> Logs:
    settings = LogSettings(
        file_bytes_max=orders.file_bytes_max,
        frame_bytes_max=orders.frame_bytes_max,
        sync_delay_seconds=orders.sync_delay_seconds,
        idle_seconds=orders.idle_seconds,
        retry_seconds=0.005,
    )
    limits = SharedLimits(cache_bytes_max=orders.cache_bytes_max, reserve_bytes=64 << 10)
    return Logs(directory, settings, limits, DISKS[orders.disk](trigger))
