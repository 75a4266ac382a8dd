"""How a log is, for people and health checks."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.log.reopen import Mode
from penstock.log.replay import Missing


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A moment's view of one log."""

    topic: str
    mode: Mode
    reason: str
    """Why it is not open; empty when it is."""
    files: int
    file_bytes: int
    pending_bytes: int
    missing: tuple[Missing, ...]
    """Offsets that were given out and cannot be read."""
