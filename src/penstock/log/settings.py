"""The settings of logs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WhenFull(Enum):
    """What a publish does when the queue of bytes for the disk is full."""

    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Limits and delays of every log of a broker."""

    file_bytes_max: int = 64 << 20
    """Rotate to a new file when the active one would exceed this size."""
    file_seconds_max: float = 3600
    """Rotate when the active file is this old and has messages."""
    frame_bytes_max: int = 4 << 20
    """Runs are joined into frames up to this size; a larger run has a frame of its own."""
    pending_bytes_max: int = 64 << 20
    """Bytes of one topic that may wait for the disk."""
    when_full: WhenFull = WhenFull.WAIT
    sync_delay_seconds: float = 0.0
    """Delay before a group is written, so that more runs join it; 0 is the end of the turn."""
    idle_seconds: float = 0.05
    """Write a checkpoint when nothing was appended for this long."""
    resume_free_bytes: int = 16 << 20
    """After a full disk, writing resumes when this much space is free."""
    seal_at_start_bytes: int = 8 << 20
    """A last file of this size is sealed at the start instead of being indexed in memory."""
    tick_seconds: float = 1.0
    """Interval of the periodic work on open logs."""
    index_retry_seconds: float = 0.5
    """First delay before the subject index repeats work that failed; doubles up to a minute."""
    retry_seconds: float = 0.05
    """First delay before a log is reopened after a disk error; doubles up to RETRY_SECONDS_MAX."""
