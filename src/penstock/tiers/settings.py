"""The numbers the tiers need, apart from where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

BACKLOG_BYTES: Final = 512 << 20


class Pressure(Enum):
    """What producers meet when the uploader is too far behind."""

    NONE = "none"
    SLOW = "slow"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Limits and delays of every topic's tiers."""

    interval_seconds: float = 10
    """Upload what is new this often."""
    batch_bytes_max: int = 8 << 20
    """Upload once this much is new; what is collected at a time."""
    backlog_bytes_max: int = BACKLOG_BYTES
    """Upload at once when this much is new, and put no more of the WAL into one object."""
    linger_seconds: float = 0.25
    """The same for topics whose acks wait for the upload."""
    uploads_at_once: int = 4
    """Over all topics."""
    object_bytes_max: int = 128 << 20
    """Small neighbours are merged up to this."""
    object_seconds_max: float = 300
    """When nothing new has come for this long, fewer neighbours are enough for a merge."""
    merge_objects_min: int = 8
    """Neighbours are merged when there are this many of one size, or together they are this many
    times as large as the largest of them.
    """
    trash_seconds: float = 3600
    """An object that no longer counts is removed after this long."""
    retry_seconds: float = 0.5
    """First delay after a failed upload; doubles, with jitter, up to retry_seconds_max."""
    retry_seconds_max: float = 30
    wal_seconds_min: float = 3600
    """Local files are kept at least this long,"""
    wal_bytes_min: int = 100 << 30
    """and at least this much of each topic."""
    wal_bytes_max: int = 1 << 40
    """Local files that a subscription still needs go when they are more than this."""
    lag_bytes_max: int = 8 << 30
    """Bytes not uploaded from which on producers meet the pressure policy."""
    pressure: Pressure = Pressure.NONE
    reserve_offsets: int = 1 << 20
    """Offsets reserved ahead in the manifest, so that no successor gives one out again."""
