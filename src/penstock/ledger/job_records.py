"""Entries about jobs in settle frames.

The body of a frame is a MessagePack array: `"job"`, version 1, then entries. A change has the whole
state of its jobs. Applying it gives that state whatever the former one was, so that earlier entries
may be missing.

| Entry | Members |
|---|---|
| change | 0, endpoint, state, changed_us, offsets, retries, until_us, incremental_seconds |
| snapshot | 1, head, priorities, ledgers |
| start | 2, endpoint, start, excluded offsets |

`offsets` is one offset, or a roaring bitmap (64 bit, portable form) of several.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
from pyroaring import BitMap64

KIND: Final = "job"
VERSION: Final = 1
CHANGE: Final = 0
SNAPSHOT: Final = 1
START: Final = 2


class Change(NamedTuple):
    """Jobs of one endpoint enter a state."""

    endpoint: int
    state: int
    changed_us: int
    offsets: int | BitMap64
    retries: int = 0
    until_us: int = 0
    """End of the delay of a queued job, or of the timeout of a job in flight."""
    incremental_seconds: int = 0

    @property
    def jobs(self) -> int:
        return 1 if isinstance(self.offsets, int) else len(self.offsets)


class Start(NamedTuple):
    """The jobs of an endpoint start at an earlier offset; the excluded offsets have none."""

    endpoint: int
    start: int
    excluded: BitMap64


class JobSnapshot(NamedTuple):
    """The state of all jobs of a channel."""

    head: int
    """Messages before it have jobs."""
    priorities: dict[int, bytes]
    ledgers: dict[int, list[Any]]
    """The result of `JobLedger.state` by the number of the endpoint."""


Entry = Change | Start | JobSnapshot


def encode(entries: Iterable[Entry]) -> bytes:
    """The body of a settle frame."""
    return msgspec.msgpack.encode([KIND, VERSION, *map(_plain, entries)])


def decode(plain: list[Any]) -> Entry:
    """An entry that `encode` wrote; ignores members that a later version appended."""
    kind, *members = plain
    if kind == SNAPSHOT:
        return JobSnapshot(*members[:3])
    if kind == START:
        return Start(members[0], members[1], BitMap64.deserialize(members[2]))
    if isinstance(members[3], bytes):
        members[3] = BitMap64.deserialize(members[3])
    return Change(*members[:7])


def _plain(entry: Entry) -> list[Any]:
    if isinstance(entry, JobSnapshot):
        return [SNAPSHOT, *entry]
    if isinstance(entry, Start):
        return [START, entry.endpoint, entry.start, entry.excluded.serialize()]
    if isinstance(entry.offsets, int):
        return [CHANGE, *entry]
    entry.offsets.run_optimize()
    return [CHANGE, *entry[:3], entry.offsets.serialize(), *entry[4:]]
