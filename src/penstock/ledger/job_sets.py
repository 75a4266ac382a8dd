"""Which job is in which state: roaring bitmaps, so a million queued jobs are kilobytes.

Only what is not delivered is written down: a job that is in none of the sets has been delivered.
Whatever a job was, an entry of the log says what it is, and `apply` brings it there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.ledger.job_column import CHUNK_BITS, Column
from penstock.ledger.job_records import Change, Start
from penstock.ledger.job_states import (
    Flight,
    JobFacts,
    JobRules,
    JobState,
    key_of,
    next_priority,
    offset_of,
)

TICK_US: Final = 100_000
"""Retries wait for a multiple of this."""
CHANGED_KEPT: Final = 1 << 16
"""Of so many jobs behind the head it is known when they were delivered."""
_FORGETFUL: Final = (JobState.DELIVERED, JobState.REMOVED)


class JobSets:
    """The jobs of the consumer with this number, for messages from `start` up to `head`."""

    def __init__(self, consumer: int, start: int, rules: JobRules, priorities: Column) -> None:
        self.consumer, self.start, self.rules = consumer, start, rules
        self.head = start
        self.delivered = 0
        self._priorities = priorities
        self._queued = BitMap64()
        self._waiting = BitMap64()
        self._due: dict[int, BitMap64] = {}
        self._ticks: list[int] = []
        self._flights: dict[int, Flight] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._dead = BitMap64()
        self._removed = BitMap64()
        self._retries = Column("u1")
        self._changed = Column("i8")
        self._latest_us = 0
        """No job was changed later; never goes back, so that a later number is a new one."""

    # -- what there is

    @property
    def ready(self) -> bool:
        """Whether a job can be taken now."""
        return bool(self._queued)

    def numbers(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        return {
            JobState.QUEUED: len(self._queued) + len(self._waiting),
            JobState.INFLIGHT: len(self._flights),
            JobState.DELIVERED: self.delivered,
            JobState.DEAD: len(self._dead),
        }

    def facts(self, offset: int) -> JobFacts | None:
        """A job; None if there is none for this offset."""
        state = self._state(offset)
        if state is None:
            return None
        flight, retries = self._flights.get(offset), self._retries[offset]
        if flight is None:
            return JobFacts(state, self._changed[offset], retries)
        return JobFacts(state, flight.changed_us, retries, flight.incremental_seconds)

    def queued(self, limit: int, after: int = -1) -> list[int]:
        """Keys of queued jobs in order, behind the key `after`."""
        return list(islice(self._queued.iter_equal_or_larger(after + 1), limit))

    def dead_before(self, offset: int, limit: int) -> list[int]:
        """Offsets of dead jobs, newest first, all before `offset`."""
        last = self._dead.rank(offset - 1) if offset > 0 else 0
        return [self._dead[at] for at in range(last - 1, max(last - 1 - limit, -1), -1)]

    def dead_behind(self, offset: int, limit: int) -> list[int]:
        """Offsets of dead jobs, oldest first, all behind `offset`."""
        return list(islice(self._dead.iter_equal_or_larger(offset + 1), limit))

    def span(self, state: JobState) -> tuple[int, int] | None:
        """The lowest and the highest offset with a job in this state; not for delivered ones."""
        if state is JobState.INFLIGHT:
            return (min(self._flights), max(self._flights)) if self._flights else None
        if state is JobState.DEAD:
            return (self._dead.min(), self._dead.max()) if self._dead else None
        spans = [_span(keys, at) for keys in (self._queued, self._waiting) for at in _leads(keys)]
        return (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None

    def lease(self, offset: int) -> int | None:
        """The fencing number of a job in flight."""
        flight = self._flights.get(offset)
        return None if flight is None else flight.changed_us

    # -- new messages

    def offer(self, first: int, stop: int) -> None:
        """Queue a job for every offset; all are of the lowest priority."""
        self._leave_out(first)
        first = max(first, self.head)
        if first < stop:
            self._queued.add_range(key_of(0, first), key_of(0, stop - 1) + 1)
            self.head = stop

    def offer_each(self, keys: list[int], stop: int) -> None:
        """Queue jobs by their keys, ascending offsets before `stop`; the others have none."""
        new = [key for key in keys if offset_of(key) >= self.head]
        self._queued.update(new)
        gone = BitMap64()
        gone.add_range(self.head, max(self.head, stop))
        self._removed |= gone - BitMap64(map(offset_of, new))
        self.head = max(self.head, stop)

    # -- what is kept

    def begin(self, start: Start) -> None:
        """Jobs begin earlier than they did; those that are not excluded count as delivered."""
        self.delivered += max(self.start - start.start, 0) - len(start.excluded)
        self.start = start.start
        self._removed |= start.excluded

    def apply(self, change: Change) -> None:
        """Bring jobs into the state that a change tells, whatever they are in."""
        offsets = change.offsets
        for offset in (offsets,) if isinstance(offsets, int) else offsets:
            if offset < self.start:
                continue
            state = self._state(offset)
            if state is not None:
                self._leave(offset, state)
            self._enter(offset, change)

    def drop(self, offset: int) -> None:
        """The message is gone, and so is its job."""
        state = self._state(offset)
        if state is not None:
            self._leave(offset, state)
            self._removed.add(offset)

    def lose(self, start: int, deleted: BitMap64) -> None:
        """Messages before `start`, and these, are gone, and so are their jobs."""
        if self.start < start:
            self._lose_before(min(start, self.head))
            self.start = start
            self.head = max(self.head, start)
        for offset in deleted - self._removed:
            if offset >= self.head:
                break
            self.drop(offset)

    def state(self) -> list[Any]:
        """Everything, as `restored` takes it; what the broker has in flight counts as queued."""
        tried = self._retries.chunks() | set(_chunks(self._dead))
        self._changed.trim(self.head - CHANGED_KEPT, tried)
        pulled = {o: tuple(f) for o, f in self._flights.items() if f.until_us}
        queued = self._queued | self._waiting
        queued.update(self._key(offset) for offset in self._flights if offset not in pulled)
        due = {tick: bits & self._waiting for tick, bits in self._due.items()}
        return [
            self.start,
            self.head,
            self.delivered,
            queued.serialize(),
            {tick: bits.serialize() for tick, bits in due.items() if bits},
            pulled,
            self._dead.serialize(),
            self._removed.serialize(),
            self._retries.state(),
            self._changed.state(),
            self._latest_us,
        ]

    @classmethod
    def restored(cls, consumer: int, state: list[Any], rules: JobRules, priorities: Column) -> Self:
        start, head, delivered, queued, due, flights, dead, removed, *rest = state
        retries, changed, latest = rest[:3]
        sets = cls(consumer, start, rules, priorities)
        sets.head, sets.delivered = head, delivered
        sets._due = {tick: BitMap64.deserialize(bits) for tick, bits in due.items()}
        for bits in sets._due.values():
            sets._waiting |= bits
        sets._queued = BitMap64.deserialize(queued) - sets._waiting
        sets._ticks = sorted(sets._due)
        sets._flights = {offset: Flight(*flight) for offset, flight in flights.items()}
        sets._deadlines = sorted((f.until_us, offset) for offset, f in sets._flights.items())
        sets._dead, sets._removed = BitMap64.deserialize(dead), BitMap64.deserialize(removed)
        sets._retries, sets._changed = Column("u1", retries), Column("i8", changed)
        sets._latest_us = latest
        return sets

    def floor(self) -> int:
        """No job before this offset is anything but delivered."""
        firsts = [self.head, *self._flights]
        for keys in (self._queued, self._waiting):
            firsts += map(offset_of, _leads(keys))
        if self._dead:
            firsts.append(self._dead.min())
        return min(firsts)

    # -- details

    def _key(self, offset: int) -> int:
        return key_of(self._priorities[offset], offset)

    def _state(self, offset: int) -> JobState | None:
        if offset in self._flights:
            return JobState.INFLIGHT
        if not self.start <= offset < self.head or offset in self._removed:
            return None
        if offset in self._dead:
            return JobState.DEAD
        key = self._key(offset)
        queued = key in self._queued or key in self._waiting
        return JobState.QUEUED if queued else JobState.DELIVERED

    def _leave_out(self, first: int) -> None:
        """No message is between the head and `first`, so no job is."""
        if self.head < first:
            self._removed.add_range(self.head, first)

    def _lose_before(self, stop: int) -> None:
        """Whole ranges at a time: these may be millions."""
        first, jobs = self.start, max(stop - self.start, 0)
        for offsets in (self._removed, self._dead):
            jobs -= _cut(offsets, first, stop)
        for keys in (self._queued, self._waiting):
            for at in list(_leads(keys)):
                lead = at - offset_of(at)
                jobs -= _cut(keys, lead + first, lead + stop)
        for offset in [offset for offset in self._flights if offset < stop]:
            del self._flights[offset]
            jobs -= 1
        self.delivered -= jobs

    def _leave(self, offset: int, state: JobState) -> None:
        if state is JobState.INFLIGHT:
            del self._flights[offset]
        elif state is JobState.DEAD:
            self._dead.discard(offset)
        elif state is JobState.QUEUED:
            key = self._key(offset)
            self._queued.discard(key)
            self._waiting.discard(key)
        else:
            self.delivered -= 1

    def _enter(self, offset: int, change: Change) -> None:
        state = change.state
        if state == JobState.INFLIGHT:
            flight = Flight(change.changed_us, change.until_us, change.incremental_seconds)
            self._flights[offset] = flight
            heapq.heappush(self._deadlines, (change.until_us, offset))
        elif state == JobState.DEAD:
            self._dead.add(offset)
        elif state == JobState.QUEUED:
            self._queue(self._key(offset), change.until_us)
        elif state == JobState.DELIVERED:
            self.delivered += 1
        else:
            self._removed.add(offset)
        self._retries[offset] = 0 if state in _FORGETFUL else change.retries
        self._changed[offset] = change.changed_us
        self._latest_us = max(self._latest_us, change.changed_us)

    def _queue(self, key: int, until_us: int) -> None:
        if not until_us:
            self._queued.add(key)
            return
        tick = -(-until_us // TICK_US)
        if tick not in self._due:
            self._due[tick] = BitMap64()
            heapq.heappush(self._ticks, tick)
        self._due[tick].add(key)
        self._waiting.add(key)

    def _queue_many(self, offsets: npt.NDArray[np.int64], now_us: int) -> None:
        self._queued.update(map(self._key, offsets.tolist()))
        self._retries.set_many(offsets, 0)
        self._changed.set_many(offsets, now_us)

    def _pending(self, first: int, stop: int) -> Iterator[int]:
        """Offsets of a range whose jobs are queued or in flight."""
        for keys in (self._queued, self._waiting):
            for at in _leads(keys):
                lead = at - offset_of(at)
                count = keys.range_cardinality(lead + first, lead + stop)
                yield from map(offset_of, islice(keys.iter_equal_or_larger(lead + first), count))
        yield from (offset for offset in self._flights if first <= offset < stop)


def _cut(bits: BitMap64, first: int, stop: int) -> int:
    """Take a range out; how many were in it."""
    if first >= stop:
        return 0
    count: int = bits.range_cardinality(first, stop)
    bits.remove_range(first, stop)
    return count


def _leads(keys: BitMap64) -> Iterator[int]:
    """The first key of every priority."""
    at = next(keys.iter_equal_or_larger(0), None)
    while at is not None:
        yield at
        at = next(keys.iter_equal_or_larger(next_priority(at)), None)


def _chunks(offsets: BitMap64) -> Iterator[int]:
    """Numbers of the chunks of a column that these offsets are in."""
    at = next(offsets.iter_equal_or_larger(0), None)
    while at is not None:
        number = at >> CHUNK_BITS
        yield number
        at = next(offsets.iter_equal_or_larger((number + 1) << CHUNK_BITS), None)


def _span(keys: BitMap64, lead: int) -> tuple[int, int]:
    """The lowest and the highest offset of the priority whose first key this is."""
    return offset_of(lead), offset_of(keys[keys.rank(next_priority(lead) - 1) - 1])
