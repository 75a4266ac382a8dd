"""Jobs as settle frames keep them.

The body of a frame is a MessagePack array: `"job"`, version 1, then entries. An entry is a whole
truth about its jobs: applied over whatever was known of them it gives their state, so that entries
between may be missing.

| Entry | Members |
|---|---|
| change | 0, consumer, state, changed_us, offsets, retries, until_us, incremental_seconds |
| snapshot | 1, head, priorities, ledgers |
| start | 2, consumer, start, excluded offsets |

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
    """Jobs of one consumer that are all in one state from now on."""

    consumer: int
    state: int
    changed_us: int
    offsets: int | BitMap64
    retries: int = 0
    until_us: int = 0
    """Queued: not before; in flight: not after."""
    incremental_seconds: int = 0

    @property
    def jobs(self) -> int:
        return 1 if isinstance(self.offsets, int) else len(self.offsets)


class Start(NamedTuple):
    """A consumer's jobs begin here from now on, but for the excluded offsets."""

    consumer: int
    start: int
    excluded: BitMap64


class JobSnapshot(NamedTuple):
    """Everything about the jobs of a channel."""

    head: int
    """Messages before it have jobs."""
    priorities: dict[int, bytes]
    ledgers: dict[int, list[Any]]
    """By the consumer's number, what JobLedger.state gives."""


Entry = Change | Start | JobSnapshot


def encode(entries: Iterable[Entry]) -> bytes:
    """The body of a settle frame."""
    return msgspec.msgpack.encode([KIND, VERSION, *map(_plain, entries)])


def decode(plain: list[Any]) -> Entry:
    """An entry as `encode` wrote it; what a later version appended is passed over."""
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
        return [START, entry.consumer, entry.start, entry.excluded.serialize()]
    if isinstance(entry.offsets, int):
        return [CHANGE, *entry]
    entry.offsets.run_optimize()
    return [CHANGE, *entry[:3], entry.offsets.serialize(), *entry[4:]]
