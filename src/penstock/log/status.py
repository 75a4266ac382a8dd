"""How a log is, for people and health checks."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.log.recover import Missing
from penstock.log.reopen import Mode


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
