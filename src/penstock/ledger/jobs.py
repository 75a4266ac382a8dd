"""The jobs of one endpoint as a state machine: requests, deliveries and time change their states.

Callers pass the time as microseconds since 1970. Methods apply their changes and return them as
entries for the log. Jobs that the broker itself pushes are in flight in memory only: after a crash
they are queued as before.
"""

from __future__ import annotations

import heapq

import numpy as np
from pyroaring import BitMap64

from penstock.ledger.job_records import Change, Start
from penstock.ledger.job_sets import TICK_US, JobSets
from penstock.ledger.job_states import (
    RETRIES_MAX,
    TRANSITIONS,
    Claimed,
    Flight,
    JobState,
    Refusal,
    offset_of,
)


class JobLedger(JobSets):
    """The jobs of one endpoint and their transitions."""

    # -- requests of an endpoint that pulls

    def change_state(
        self, offset: int, requested: str, incremental: int, lease: int | None, now_us: int
    ) -> Change | Refusal | None:
        """Change the state of a job on request; None if it is in that state already."""
        self.tick(now_us)
        state = self._state(offset)
        if incremental and (requested != "INFLIGHT" or state is JobState.INFLIGHT):
            return Refusal.TIMEOUT
        if lease is not None and self.lease(offset) != lease:
            return Refusal.LEASE
        if state is not None and requested == state.name:
            return None
        target = None if state is None else TRANSITIONS.get((state, requested))
        if target is None:
            return Refusal.TRANSITION
        retries = self._retries[offset]
        if target is not JobState.INFLIGHT:
            return self._change(target, offset, now_us, retries)
        if state is JobState.DEAD:
            retries = min(retries + 1, RETRIES_MAX)
        return self._start(offset, incremental, retries, now_us)

    def claim(
        self, limit: int, incremental: int, now_us: int
    ) -> tuple[list[Claimed], list[Change]]:
        """Put the first queued jobs in flight, each with a new lease."""
        self.tick(now_us)
        claimed, changes = [], []
        for offset in map(offset_of, self.queued_keys(limit)):
            change = self._start(offset, incremental, self._retries[offset], now_us)
            claimed.append(Claimed(offset, change.changed_us))
            changes.append(change)
        return claimed, changes

    def extend(self, offset: int, lease: int, seconds: int, now_us: int) -> Change | Refusal:
        """Restart the timeout of a job in flight, `seconds` longer than the default."""
        self.tick(now_us)
        flight = self._flights.get(offset)
        if flight is None or flight.changed_us != lease or not flight.until_us:
            return Refusal.LEASE
        until = now_us + self.rules.timeout_us + seconds * 1_000_000
        return self._applied(
            Change(
                self.endpoint,
                JobState.INFLIGHT,
                lease,
                offset,
                self._retries[offset],
                until,
                flight.incremental_seconds,
            )
        )

    # -- deliveries by the broker itself

    def take(self, now_us: int) -> int | None:
        """Put the next job in flight; returns its offset, None if no job is queued."""
        key = next(self._queued.iter_equal_or_larger(0), None)
        if key is None:
            return None
        self._queued.discard(key)
        offset = offset_of(key)
        self._flights[offset] = Flight(now_us, 0, 0)
        return offset

    def succeeded(self, offset: int, now_us: int) -> Change | None:
        """Mark a job as delivered; None if it is not in flight any more."""
        if offset not in self._flights:
            return None
        return self._change(JobState.DELIVERED, offset, now_us, self._retries[offset])

    def failed(self, offset: int, now_us: int, until_us: int, final: bool = False) -> Change | None:
        """Queue a job again from `until_us` on; a job without retries left, or `final`, is dead.

        None if the job is not in flight any more.
        """
        if offset not in self._flights:
            return None
        retries = self._retries[offset]
        if final or retries >= self.rules.retries_max:
            return self._change(JobState.DEAD, offset, now_us, retries)
        return self._change(JobState.QUEUED, offset, now_us, retries + 1, until_us)

    def put_back(self, offset: int) -> None:
        """Queue a job as before its delivery started."""
        if self._flights.pop(offset, None) is not None:
            self._queued.add(self._key(offset))

    # -- time

    def tick(self, now_us: int) -> list[Change]:
        """Queue jobs whose delay has ended; end flights that timed out, returning their changes."""
        while self._ticks and self._ticks[0] * TICK_US <= now_us:
            due = self._due.pop(heapq.heappop(self._ticks)) & self._waiting
            self._waiting -= due
            self._queued |= due
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_us:
            until, offset = heapq.heappop(self._deadlines)
            flight = self._flights.get(offset)
            if flight is not None and flight.until_us == until:
                expired.append(self._expire(offset, until))
        return expired

    def next_us(self) -> int | None:
        """When `tick` will have something to do; None if no delay or timeout is running."""
        ticks = [tick * TICK_US for tick in self._ticks[:1]]
        return min([*ticks, *(until for until, _ in self._deadlines[:1])], default=None)

    def end_delays(self) -> None:
        """Queue all jobs that wait for a retry."""
        self._queued |= self._waiting
        self._waiting.clear()

    # -- dead letters, and delivering again

    def requeue(self, offsets: BitMap64 | None, now_us: int) -> Change | None:
        """Queue dead jobs, these or all, with all their attempts; None if there is none."""
        chosen = self._dead.copy() if offsets is None else self._dead & offsets
        return self._requeue(chosen, now_us) if chosen else None

    def is_exhausted(self, offset: int) -> bool:
        """Whether a job is dead and has no retry left."""
        return offset in self._dead and self._retries[offset] >= self.rules.retries_max

    def purge(self, offsets: BitMap64 | None, now_us: int) -> Change | None:
        """Remove dead jobs without retries left, of these or of all; None if there is none."""
        among = self._dead if offsets is None else self._dead & offsets
        chosen = BitMap64(filter(self.is_exhausted, among))
        if not chosen:
            return None
        return self._applied(Change(self.endpoint, JobState.REMOVED, now_us, chosen))

    def replay(self, first: int, stop: int, now_us: int) -> list[Change | Start]:
        """Queue the jobs of a range again: delivered and dead ones, and those before the start."""
        entries: list[Change | Start] = []
        stop = min(stop, self.head)
        if first < min(self.start, stop):
            excluded = BitMap64()
            if stop < self.start:
                excluded.add_range(stop, self.start)
            earlier = Start(self.endpoint, first, excluded)
            self.move_start(earlier)
            entries.append(earlier)
        chosen = BitMap64()
        if max(first, self.start) < stop:
            chosen.add_range(max(first, self.start), stop)
            chosen -= BitMap64(self._pending(first, stop))
            chosen -= self._removed
        if chosen:
            self.delivered -= len(chosen - self._dead)
            entries.append(self._requeue(chosen, now_us))
        return entries

    # -- details

    def _applied(self, change: Change) -> Change:
        self.apply(change)
        return change

    def _change(
        self, state: JobState, offset: int, now_us: int, retries: int, until_us: int = 0
    ) -> Change:
        return self._applied(Change(self.endpoint, state, now_us, offset, retries, until_us))

    def _start(self, offset: int, incremental: int, retries: int, now_us: int) -> Change:
        until = now_us + self.rules.timeout_us + incremental * 1_000_000
        # Later than any earlier change, because this time is also the lease.
        changed = max(now_us, self._latest_us + 1)
        return self._applied(
            Change(self.endpoint, JobState.INFLIGHT, changed, offset, retries, until, incremental)
        )

    def _expire(self, offset: int, now_us: int) -> Change:
        retries = self._retries[offset]
        if retries >= self.rules.retries_max:
            return self._change(JobState.DEAD, offset, now_us, retries)
        return self._change(JobState.QUEUED, offset, now_us, retries + 1)

    def _requeue(self, chosen: BitMap64, now_us: int) -> Change:
        self._dead -= chosen
        self._queue_many(np.array(chosen.to_array(), np.int64), now_us)
        return Change(self.endpoint, JobState.QUEUED, now_us, chosen)
