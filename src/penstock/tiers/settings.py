"""Limits and delays of the tiers, independent of the configuration file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.tiers.manifest.stored_manifest import DEFAULT_LIMITS, ManifestLimits

BACKLOG_BYTES: Final = 512 << 20
"""The default of `TierSettings.backlog_bytes_max`."""


class Pressure(Enum):
    """The back-pressure policy for producers while uploads are too far behind."""

    NONE = "none"
    SLOW = "slow"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Limits and delays of the tiers of every topic."""

    interval_seconds: float = 10
    """New messages are uploaded after this time at the latest."""
    batch_bytes_max: int = 8 << 20
    """This many new bytes are uploaded before; also how much is collected at a time."""
    backlog_bytes_max: int = BACKLOG_BYTES
    """This many new bytes are uploaded at once; also how much of the WAL one object may contain."""
    linger_seconds: float = 0.25
    """The interval for topics whose acks wait for the upload."""
    upload_pause_seconds: float = 1.0
    """Between two uploads of a topic unless a backlog is waiting: objects are few and large."""
    uploads_at_once: int = 4
    """Uploads in progress, over all topics."""
    child_bytes_min: int = 32 << 20
    """With this much WAL waiting, an object is made in the child process."""
    object_bytes_max: int = 128 << 20
    """The size up to which small adjacent objects are merged."""
    object_seconds_max: float = 300
    """After this time without new objects, a merge needs fewer objects."""
    merge_objects_min: int = 8
    """Adjacent objects are merged if they are this many times as large as the largest of them."""
    look_seconds: float = 0.05
    """From a change of a topic to the decision which jobs are due."""
    upkeep_seconds: float = 1.0
    """From a change of a topic to its upkeep, and the least time between two steps of it."""
    close_seconds: float = 30.0
    """How long a broker that stops waits for uploads; the WAL contains the remaining messages."""
    trash_seconds: float = 3600
    """The grace time before an object that has left the manifest is deleted."""
    retry_seconds: float = 0.5
    """First delay after a failed upload; doubles, with jitter, up to retry_seconds_max."""
    retry_seconds_max: float = 30
    wal_seconds_min: float = 3600
    """WAL files are retained for at least this time,"""
    wal_bytes_min: int = 100 << 30
    """and for at least this many bytes of each topic."""
    wal_bytes_max: int = 1 << 40
    """Beyond this size the oldest WAL files are deleted even if a subscription needs them."""
    lag_bytes_max: int = 8 << 30
    """With more bytes that are not uploaded, the back-pressure policy applies to producers."""
    pressure: Pressure = Pressure.NONE
    reserve_offsets: int = 1 << 20
    """Offsets that the manifest reserves, so that no successor assigns one again."""
    manifest: ManifestLimits = DEFAULT_LIMITS
