"""The states of a job, their transitions, and the order in which jobs are delivered.

            message stored    requested, claimed, pushed    requested, response 2xx
    (none) ────────► QUEUED ──────────────────────► INFLIGHT ──────────────► DELIVERED
                        ▲  ▲    timeout or failure,    │  ▲
                        │  └──── retries are left ─────┤  │ requested: one retry more
                requeue │                              │  │
                        └──────────── DEAD ◄───────────┘  │
                                       └──────────────────┘

A key is the priority and the offset of a job in one number. Keys ascend in the order of delivery:
higher priorities first, within a priority lower offsets first.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

OFFSET_BITS: Final = 44
OFFSET_LIMIT: Final = 1 << OFFSET_BITS
PRIORITY_MAX: Final = (1 << 19) - 1
RETRIES_MAX: Final = 255


class JobState(IntEnum):
    """The states of a job; clients of webhook-broker know their numbers."""

    REMOVED = 0
    QUEUED = 1001
    INFLIGHT = 1002
    DELIVERED = 1003
    DEAD = 1004


TRANSITIONS: Final = {
    (JobState.QUEUED, "INFLIGHT"): JobState.INFLIGHT,
    (JobState.INFLIGHT, "DELIVERED"): JobState.DELIVERED,
    (JobState.INFLIGHT, "DEAD"): JobState.DEAD,
    (JobState.DEAD, "INFLIGHT"): JobState.INFLIGHT,
}
"""The transitions that an endpoint may request; all others are refused."""


class Refusal(Enum):
    """Why a requested change was refused."""

    TRANSITION = "invalid transition request"
    TIMEOUT = "timeout provided with invalid state"
    LEASE = "lease is not held"


class JobRules(NamedTuple):
    """Limits of all jobs."""

    retries_max: int
    timeout_us: int
    """How long a job may be in flight, unless its endpoint requests more time."""


class Flight(NamedTuple):
    """A job in flight; `until_us` is 0 while the broker itself pushes it."""

    changed_us: int
    until_us: int
    incremental_seconds: int


class JobFacts(NamedTuple):
    """The current state of a job."""

    state: JobState
    changed_us: int
    """0 if it has not changed since its message was stored."""
    retries: int
    incremental_seconds: int = 0


class Claimed(NamedTuple):
    """A job that belongs to its claimer until the lease ends."""

    offset: int
    lease: int


def key_of(priority: int, offset: int) -> int:
    """The key of a job."""
    return (PRIORITY_MAX - priority) << OFFSET_BITS | offset


def offset_of(key: int) -> int:
    return key & (OFFSET_LIMIT - 1)


def priority_of(key: int) -> int:
    return PRIORITY_MAX - (key >> OFFSET_BITS)


def next_priority(key: int) -> int:
    """The lowest key of the next lower priority."""
    return ((key >> OFFSET_BITS) + 1) << OFFSET_BITS
