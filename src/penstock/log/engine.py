"""What all logs of a broker share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.threads import Workers
from penstock.log.cache import TailCache
from penstock.log.commit import Committer
from penstock.log.counters import LogCounters
from penstock.log.reserve import Reserve
from penstock.log.settings import LogSettings
from penstock.log.subjects.bits import MatchCache

MATCHES_BYTES_MAX: Final = 64 << 20
"""Answers of subject filters over sealed files that are kept, all logs together."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Disk and clock, threads for reads, one committer, one cache, one child process."""

    settings: LogSettings
    disk: Disk
    clock: Clock
    readers: Workers
    committer: Committer
    cache: TailCache
    reserve: Reserve
    child: Child
    matches: MatchCache = field(default_factory=lambda: MatchCache(MATCHES_BYTES_MAX))
    counters: LogCounters = field(default_factory=LogCounters)
