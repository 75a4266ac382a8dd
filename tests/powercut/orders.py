"""What a child is told to do, in one line, before it touches the disk."""

from __future__ import annotations

from enum import Enum

import msgspec

from tests.powercut.aim import Aim


class TopicOrders(msgspec.Struct, frozen=True):
    """A topic that must be there before the load begins."""

    name: str
    partitions: int = 1
    purged: bool = False
    """Drop the oldest messages now and then."""
    settled: bool = True
    """Store settlements now and then, which keeps files from being removed."""
    cloud: bool = False
    """Acks wait for the object and the manifest."""


class Bug(Enum):
    """A bug of the tiers that must be found."""

    UNSYNCED_OBJECTS = "unsynced_objects"
    EARLY_MANIFEST = "early_manifest"
    EARLY_PRUNE = "early_prune"
    EARLY_ACK = "early_ack"
    UNSYNCED_METADATA = "unsynced_metadata"


class TierOrders(msgspec.Struct, frozen=True):
    """How small and quick everything behind the logs is."""

    batch_bytes_max: int = 16 << 10
    object_bytes_max: int = 128 << 10
    trash_seconds: float = 0.0
    wal_bytes_min: int = 0
    upkeep_seconds: float = 0.05
    bug: Bug | None = None


class Orders(msgspec.Struct, frozen=True):
    """Recover, tell everything that is there, then keep busy until told to stop or killed."""

    directory: str
    seed: int
    cycle: int
    disk: str = "true"
    aim: Aim | None = None
    aim_in_recovery: bool = False
    index: bool = True
    """Hold the subject index against what was read; that may mean to wait until it is made."""
    disk_failed: bool = False
    """Files may end in bytes that do not count."""
    topics: tuple[TopicOrders, ...] = ()
    publishers: int = 24
    messages_max: int = 8
    """In one run."""
    payload_bytes_max: int = 400
    new_topics: int = 0
    """Make this many more, one after the other."""
    cut_at_new_topic: int | None = None
    """Cut the power when this one of them has just been acknowledged."""
    file_bytes_max: int = 64 << 10
    frame_bytes_max: int = 4 << 20
    sync_delay_seconds: float = 0.0
    idle_seconds: float = 0.05
    cache_bytes_max: int = 1 << 20
    tiers: TierOrders | None = None
    """Run everything that keeps messages; without, the logs alone."""
