"""The state of every job in roaring bitmaps, so that a million queued jobs take kilobytes.

A job that is in none of the sets is delivered. An entry of the log has the whole new state of its
jobs, and `apply` sets it whatever their former state is.
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
"""Delays end at multiples of this."""
CHANGED_KEPT: Final = 1 << 16
"""The times of delivery are known for this many jobs before the head."""
_FINISHED: Final = (JobState.DELIVERED, JobState.REMOVED)


class JobSets:
    """The jobs of the endpoint with a number, for the messages from `start` to before `head`."""

    def __init__(self, endpoint: int, start: int, rules: JobRules, priorities: Column) -> None:
        self.endpoint, self.start, self.rules = endpoint, start, rules
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
        """The time of the last change; never decreases, so that every lease is new."""

    # -- queries

    @property
    def ready(self) -> bool:
        """Whether a job is queued."""
        return bool(self._queued)

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        return {
            JobState.QUEUED: len(self._queued) + len(self._waiting),
            JobState.INFLIGHT: len(self._flights),
            JobState.DELIVERED: self.delivered,
            JobState.DEAD: len(self._dead),
        }

    def facts(self, offset: int) -> JobFacts | None:
        """The state of a job; None if there is no job for this offset."""
        state = self._state(offset)
        if state is None:
            return None
        flight, retries = self._flights.get(offset), self._retries[offset]
        if flight is None:
            return JobFacts(state, self._changed[offset], retries)
        return JobFacts(state, flight.changed_us, retries, flight.incremental_seconds)

    def queued_keys(self, limit: int, after: int = -1) -> list[int]:
        """Keys of queued jobs in order, after the key `after`."""
        return list(islice(self._queued.iter_equal_or_larger(after + 1), limit))

    def dead_before(self, offset: int, limit: int) -> list[int]:
        """Offsets of dead jobs before `offset`, newest first."""
        last = self._dead.rank(offset - 1) if offset > 0 else 0
        return [self._dead[at] for at in range(last - 1, max(last - 1 - limit, -1), -1)]

    def dead_after(self, offset: int, limit: int) -> list[int]:
        """Offsets of dead jobs after `offset`, oldest first."""
        return list(islice(self._dead.iter_equal_or_larger(offset + 1), limit))

    def span(self, state: JobState) -> tuple[int, int] | None:
        """The lowest and the highest offset of the jobs in a state other than DELIVERED."""
        if state is JobState.INFLIGHT:
            return (min(self._flights), max(self._flights)) if self._flights else None
        if state is JobState.DEAD:
            return (self._dead.min(), self._dead.max()) if self._dead else None
        spans = [_span(keys, at) for keys in (self._queued, self._waiting) for at in _leads(keys)]
        return (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None

    def lease(self, offset: int) -> int | None:
        """The lease (fencing token) of a job in flight."""
        flight = self._flights.get(offset)
        return None if flight is None else flight.changed_us

    # -- new messages

    def offer(self, first: int, stop: int) -> None:
        """Queue a job of the lowest priority for every offset."""
        self._skip_to(first)
        first = max(first, self.head)
        if first < stop:
            self._queued.add_range(key_of(0, first), key_of(0, stop - 1) + 1)
            self.head = stop

    def offer_each(self, keys: list[int], stop: int) -> None:
        """Queue jobs by keys of ascending offsets before `stop`; other offsets have no job."""
        new = [key for key in keys if offset_of(key) >= self.head]
        self._queued.update(new)
        missing = BitMap64()
        missing.add_range(self.head, max(self.head, stop))
        self._removed |= missing - BitMap64(map(offset_of, new))
        self.head = max(self.head, stop)

    # -- changes

    def move_start(self, start: Start) -> None:
        """Start at an earlier offset; its jobs count as delivered, except excluded ones."""
        self.delivered += max(self.start - start.start, 0) - len(start.excluded)
        self.start = start.start
        self._removed |= start.excluded

    def apply(self, change: Change) -> None:
        """Put jobs into the state of a change, whatever their state is."""
        offsets = change.offsets
        for offset in (offsets,) if isinstance(offsets, int) else offsets:
            if offset < self.start:
                continue
            state = self._state(offset)
            if state is not None:
                self._leave(offset, state)
            self._enter(offset, change)

    def drop(self, offset: int) -> None:
        """Remove the job of a deleted message."""
        state = self._state(offset)
        if state is not None:
            self._leave(offset, state)
            self._removed.add(offset)

    def drop_deleted(self, start: int, deleted: BitMap64) -> None:
        """Remove the jobs of messages before `start`, and of these deleted messages."""
        if self.start < start:
            self._drop_before(min(start, self.head))
            self.start = start
            self.head = max(self.head, start)
        for offset in deleted - self._removed:
            if offset >= self.head:
                break
            self.drop(offset)

    def state(self) -> list[Any]:
        """The whole state for `restored`; jobs that the broker is pushing count as queued."""
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
    def restored(cls, endpoint: int, state: list[Any], rules: JobRules, priorities: Column) -> Self:
        start, head, delivered, queued, due, flights, dead, removed, *columns = state
        retries, changed, latest = columns[:3]
        sets = cls(endpoint, start, rules, priorities)
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
        """The offset before which every job is delivered or removed."""
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

    def _skip_to(self, first: int) -> None:
        """Record that there are no messages, and so no jobs, from the head to before `first`."""
        if self.head < first:
            self._removed.add_range(self.head, first)

    def _drop_before(self, stop: int) -> None:
        """Remove the jobs before an offset, in whole ranges, because they may be millions."""
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
        self._retries[offset] = 0 if state in _FINISHED else change.retries
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
    """Remove a range; returns how many of it were in the set."""
    if first >= stop:
        return 0
    count: int = bits.range_cardinality(first, stop)
    bits.remove_range(first, stop)
    return count


def _leads(keys: BitMap64) -> Iterator[int]:
    """The first key of every priority that has keys."""
    at = next(keys.iter_equal_or_larger(0), None)
    while at is not None:
        yield at
        at = next(keys.iter_equal_or_larger(next_priority(at)), None)


def _chunks(offsets: BitMap64) -> Iterator[int]:
    """The numbers of the chunks of a column that contain these offsets."""
    at = next(offsets.iter_equal_or_larger(0), None)
    while at is not None:
        number = at >> CHUNK_BITS
        yield number
        at = next(offsets.iter_equal_or_larger((number + 1) << CHUNK_BITS), None)


def _span(keys: BitMap64, lead: int) -> tuple[int, int]:
    """The lowest and the highest offset of the priority whose first key this is."""
    return offset_of(lead), offset_of(keys[keys.rank(next_priority(lead) - 1) - 1])
