"""What a consumer was not given yet: matching messages from a cursor on, and how many there are.

Whatever is in memory is looked at at once; only what is not needs an await. Counts of filtered
messages are remembered and moved along; a deletion anywhere makes them be counted again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from penstock.model.batch import AtHead, Gone
from penstock.model.errors import DataDamaged
from penstock.model.subjects import Filter
from penstock.topics.streams.rows import NO_ROWS, Rows
from penstock.topics.streams.stream import Stream

SCAN_MESSAGES: Final = 4096
"""So many messages are compared with filters in one turn; behind that the index is asked."""
READ_BYTES: Final = 1 << 20
KNOWN_MAX: Final = 8192
"""Subjects of which it is remembered whether they match."""


class _Counted(NamedTuple):
    """Matches between two offsets, while the stream's deletions are as they were."""

    start: int
    stop: int
    matches: int
    shape: tuple[int, int]


class Feed:
    """The next messages for one consumer; the cursor moves by `advance` only."""

    def __init__(
        self,
        stream: Stream,
        filters: Sequence[Filter],
        next_offset: int,
        picked: Iterable[int] = (),
        picked_stop: int = 0,
    ) -> None:
        """Of what is before `picked_stop`, only the `picked` offsets are wanted."""
        self._stream, self._filters = stream, tuple(filters)
        self.next_offset = next_offset
        self._picked = deque(picked)
        self.picked_stop = picked_stop
        """Before this offset only picked ones are wanted."""
        self._known: dict[bytes, bool] = {}
        self._counted: _Counted | None = None

    def wants(self, subject: bytes) -> bool:
        if not self._filters:
            return True
        known = self._known.get(subject)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[subject] = any(item.matches(subject) for item in self._filters)
        return known

    def restrict(self, filters: Sequence[Filter]) -> None:
        """From now on only what matches is wanted."""
        self._filters = tuple(filters)
        self._known.clear()
        self._counted = None

    # -- how many

    def ahead(self) -> int | None:
        """Matches from the cursor on; None when `count` has to be awaited first."""
        start, stop = self._rest, self._stream.next_offset
        if start >= stop:
            return len(self._picked)
        if not self._filters:
            return len(self._picked) + self._stream.count_all(start, stop)
        counted = self._counted
        if counted is None or counted.start != start or counted.shape != self._shape():
            counted = _Counted(start, start, 0, self._shape())
        if counted.stop < stop:
            more = self._scan(counted.stop, stop)
            if more is None:
                return None
            counted = counted._replace(stop=stop, matches=counted.matches + more)
        self._counted = counted
        return len(self._picked) + counted.matches

    async def count(self) -> int:
        """The same from the index; most likely `ahead` knows then."""
        start, stop, shape = self._rest, self._stream.next_offset, self._shape()
        count = 0
        for chosen in self._filters:
            count += await self._stream.count(chosen, start, stop)
        if self._rest == start:
            self._counted = _Counted(start, stop, count, shape)
        return len(self._picked) + count

    # -- which

    def peek(self, limit: int, bytes_max: int = READ_BYTES) -> Rows | None:
        """The next matches, at once: none at the head; None when `read` has to be awaited."""
        if self._picked:
            return None
        scanned, most = 0, limit
        while scanned < SCAN_MESSAGES:
            rows = self._stream.peek(self._rest, most, bytes_max)
            if rows is None or isinstance(rows, AtHead):
                return NO_ROWS if isinstance(rows, AtHead) else None
            if isinstance(rows, Gone):
                self.next_offset = rows.earliest
                continue
            if not rows.count:
                return None
            found = self._matching(rows, limit)
            if found.count < rows.count and most < SCAN_MESSAGES:
                most = SCAN_MESSAGES
                continue
            scanned += rows.count
            if found.count:
                return found
            self._skip(rows.offsets[-1] + 1)
        return None

    async def read(self, limit: int, bytes_max: int = READ_BYTES) -> Rows:
        """The same from wherever they are; none at the head.

        What is damaged is passed over: those behind it do not wait for somebody to repair it.
        """
        if self._picked:
            picked = list(islice(self._picked, limit))
            rows = await self._stream.read_intact(picked)
            if not rows.count:
                self.advance(picked[-1] + 1, 0)
            return rows if rows.count else await self.read(limit, bytes_max)
        if self._filters:
            return await self._read_matching(limit)
        while True:
            try:
                answer = await self._stream.read(self._rest, limit, bytes_max)
            except DataDamaged as damage:
                self._stream.passed_over(damage)
                self._skip(max(damage.next, self._rest + 1))
                continue
            if isinstance(answer, Rows):
                return answer
            if isinstance(answer, AtHead):
                return NO_ROWS
            self.next_offset = answer.earliest

    def advance(self, next_offset: int, given: int) -> None:
        """Everything before this is dealt with; `given` of it matched."""
        self.next_offset = next_offset
        while self._picked and self._picked[0] < next_offset:
            self._picked.popleft()
        counted = self._counted
        if counted is not None and counted.start < self._rest:
            left = counted._replace(start=self._rest, matches=counted.matches - given)
            self._counted = left if self._rest <= counted.stop else None

    # -- details

    @property
    def _rest(self) -> int:
        """Where the messages begin that follow one another, behind those that were picked."""
        return max(self.next_offset, self.picked_stop)

    def _shape(self) -> tuple[int, int]:
        """Changes with every deletion, and with nothing else."""
        stream = self._stream
        return stream.log.start_offset(stream.partition), stream.next_offset - stream.messages

    def _scan(self, start: int, stop: int) -> int | None:
        """Matches between, if that can be told from memory and soon."""
        if stop - start > SCAN_MESSAGES:
            return None
        count = 0
        while start < stop:
            rows = self._stream.peek(start, stop - start, READ_BYTES)
            if isinstance(rows, AtHead):
                break
            if isinstance(rows, Gone):
                start = rows.earliest
                continue
            if rows is None or not rows.count:
                return None
            wanted = self._wanted(rows)
            count += rows.count if wanted is None else sum(map(wanted.__contains__, rows.subjects))
            start = rows.offsets[-1] + 1
        return count

    def _matching(self, rows: Rows, limit: int) -> Rows:
        wanted = self._wanted(rows)
        if wanted is None:
            return rows if rows.count <= limit else rows.part(0, limit)
        places = [place for place, subject in enumerate(rows.subjects) if subject in wanted]
        return rows.take(places[:limit])

    def _wanted(self, rows: Rows) -> set[bytes] | None:
        """Subjects among these that match; None when all do."""
        if not self._filters:
            return None
        subjects = set(rows.subjects)
        wanted = set(filter(self.wants, subjects))
        return None if len(wanted) == len(subjects) else wanted

    def _skip(self, offset: int) -> None:
        """Nothing before this matches."""
        self.next_offset = offset
        counted = self._counted
        if counted is not None:
            stays = counted.start <= offset <= counted.stop
            self._counted = counted._replace(start=offset) if stays else None

    async def _read_matching(self, limit: int) -> Rows:
        while True:
            start, stop = self._rest, self._stream.next_offset
            found = [await self._stream.matching(chosen, start, limit) for chosen in self._filters]
            offsets = list(islice(merge(*found), limit))
            if not offsets:
                if self._rest == start:
                    self._skip(max(start, stop))
                return NO_ROWS
            rows = await self._stream.read_intact(offsets)
            if rows.count:
                return rows
            self._skip(offsets[-1] + 1)
