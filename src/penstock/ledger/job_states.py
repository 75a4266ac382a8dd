"""The states of a job, what may be asked of it, and the order in which jobs are delivered.

            offered          asked, claimed, taken          asked, answered 2xx
    (none) ────────► QUEUED ──────────────────────► INFLIGHT ──────────────► DELIVERED
                        ▲  ▲    timeout or failure,    │  ▲
                        │  └──── retries are left ─────┤  │ asked: one retry more
                requeue │                              │  │
                        └──────────── DEAD ◄───────────┘  │
                                       └──────────────────┘

A key is priority and offset in one number; keys ascend in the order of delivery: highest priority
first, oldest first within one.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

OFFSET_BITS: Final = 44
OFFSET_LIMIT: Final = 1 << OFFSET_BITS
PRIORITY_MAX: Final = (1 << 19) - 1
RETRIES_MAX: Final = 255


class JobState(IntEnum):
    """As the existing broker numbers them."""

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
"""What a consumer may ask for; whatever is not here is refused."""


class Refusal(Enum):
    """Why nothing was changed."""

    TRANSITION = "invalid transition request"
    TIMEOUT = "timeout provided with invalid state"
    LEASE = "lease is not held"


class JobRules(NamedTuple):
    """What jobs go by."""

    retries_max: int
    timeout_us: int
    """Of a job in flight, before what the consumer asks for beyond."""


class Flight(NamedTuple):
    """A job in flight; `until_us` is 0 while the broker itself delivers it."""

    changed_us: int
    until_us: int
    incremental_seconds: int


class JobFacts(NamedTuple):
    """One job as it is."""

    state: JobState
    changed_us: int
    """0 when it is as it was offered."""
    retries: int
    incremental_seconds: int = 0


class Claimed(NamedTuple):
    """A job that is the claimer's alone until its lease ends."""

    offset: int
    lease: int


def key_of(priority: int, offset: int) -> int:
    return (PRIORITY_MAX - priority) << OFFSET_BITS | offset


def offset_of(key: int) -> int:
    return key & (OFFSET_LIMIT - 1)


def priority_of(key: int) -> int:
    return PRIORITY_MAX - (key >> OFFSET_BITS)


def next_priority(key: int) -> int:
    """The lowest key of the next lower priority."""
    return ((key >> OFFSET_BITS) + 1) << OFFSET_BITS
