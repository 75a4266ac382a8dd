"""The messages that a consumer has not delivered yet: which they are and how many.

Messages in memory are returned without an await. The count of filtered messages is cached and
advances with the cursor; a deletion from the stream invalidates it. A consumer's deliver policy
determines where its feed begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from penstock.delivery.consumers.consumer_rules import cover, filters_of
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import DataDamaged
from penstock.model.subjects import Filter
from penstock.model.times import parse_time
from penstock.streams import NO_ROWS, SUBJECTS_PAGE, Rows, Stream
from penstock.wire.jetstream.consumer_config import ConsumerConfig

SCAN_MESSAGES: Final = 4096
"""The most messages compared with filters in one turn; beyond that the subject index is used."""
READ_BYTES: Final = 1 << 20
CACHED_SUBJECTS_MAX: Final = 8192
"""The most subjects for which the result of matching is cached."""


class _Counted(NamedTuple):
    """The number of matches between two offsets, valid until messages are deleted."""

    start: int
    stop: int
    matches: int
    shape: tuple[int, int]


class Feed:
    """The next messages of one consumer, from its cursor on.

    `advance` moves the cursor; reads move it past messages that do not match or no longer exist.
    """

    def __init__(
        self,
        stream: Stream,
        filters: Sequence[Filter],
        next_offset: int,
        picked: Iterable[int] = (),
        picked_stop: int = 0,
        *,
        scan_max: int = SCAN_MESSAGES,
        cached_subjects_max: int = CACHED_SUBJECTS_MAX,
    ) -> None:
        """Before `picked_stop`, deliver only the offsets in `picked`."""
        self._scan_max, self._cached_subjects_max = scan_max, cached_subjects_max
        self._stream, self._filters = stream, tuple(filters)
        self.next_offset = next_offset
        self._picked = deque(picked)
        self.picked_stop = picked_stop
        """Before this offset only picked messages are delivered."""
        self._matches_by_subject: dict[bytes, bool] = {}
        self._counted: _Counted | None = None

    def wants(self, subject: bytes) -> bool:
        if not self._filters:
            return True
        cache = self._matches_by_subject
        matches = cache.get(subject)
        if matches is None:
            if len(cache) >= self._cached_subjects_max:
                cache.clear()
            matches = cache[subject] = any(item.matches(subject) for item in self._filters)
        return matches

    def restrict(self, filters: Sequence[Filter]) -> None:
        """Replace the filters."""
        self._filters = tuple(filters)
        self._matches_by_subject.clear()
        self._counted = None

    # -- counting

    def ahead(self) -> int | None:
        """The number of matches from the cursor on, or None if `count` must be awaited first."""
        start, stop = self._range_start, self._stream.next_offset
        if start >= stop:
            return len(self._picked)
        if not self._filters:
            return len(self._picked) + self._stream.count_all(start, stop)
        counted = self._counted
        if counted is None or counted.start != start or counted.shape != self._shape():
            counted = _Counted(start, start, 0, self._shape())
        if counted.stop < stop:
            count = self._scan(counted.stop, stop)
            if count is None:
                return None
            counted = counted._replace(stop=stop, matches=counted.matches + count)
        self._counted = counted
        return len(self._picked) + counted.matches

    async def count(self) -> int:
        """Count the matches from the cursor on with the subject index, and cache the result."""
        start, stop, shape = self._range_start, self._stream.next_offset, self._shape()
        count = 0
        for subjects in self._filters:
            count += await self._stream.count(subjects, start, stop)
        if self._range_start == start:
            self._counted = _Counted(start, stop, count, shape)
        return len(self._picked) + count

    # -- reading

    def peek(self, limit: int, bytes_max: int = READ_BYTES) -> Rows | None:
        """The next matches in memory: empty at the end, None if `read` must be awaited."""
        if self._picked:
            return None
        scanned, most = 0, limit
        while scanned < self._scan_max:
            rows = self._stream.peek(self._range_start, most, bytes_max)
            if rows is None or isinstance(rows, AtHead):
                return NO_ROWS if isinstance(rows, AtHead) else None
            if isinstance(rows, Gone):
                self.next_offset = rows.earliest
                continue
            if not rows.count:
                return None
            matching = self._matching(rows, limit)
            if matching.count < rows.count and most < self._scan_max:
                most = self._scan_max
                continue
            scanned += rows.count
            if matching.count:
                return matching
            self._skip(rows.offsets[-1] + 1)
        return None

    async def read(self, limit: int, bytes_max: int = READ_BYTES) -> Rows:
        """Read the next matches from memory, disk or the object store; empty at the end.

        Damaged messages are skipped, so that later messages do not wait for a repair.
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
                answer = await self._stream.read(self._range_start, limit, bytes_max)
            except DataDamaged as damage:
                self._stream.log_skipped(damage)
                self._skip(max(damage.next, self._range_start + 1))
                continue
            if isinstance(answer, Rows):
                return answer
            if isinstance(answer, AtHead):
                return NO_ROWS
            self.next_offset = answer.earliest

    def advance(self, next_offset: int, delivered: int) -> None:
        """Move the cursor to `next_offset`; `delivered` messages before it matched."""
        self.next_offset = next_offset
        while self._picked and self._picked[0] < next_offset:
            self._picked.popleft()
        counted = self._counted
        if counted is not None and counted.start < self._range_start:
            left = counted._replace(start=self._range_start, matches=counted.matches - delivered)
            self._counted = left if self._range_start <= counted.stop else None

    # -- details

    @property
    def _range_start(self) -> int:
        """The first offset of the range that follows the picked messages."""
        return max(self.next_offset, self.picked_stop)

    def _shape(self) -> tuple[int, int]:
        """A value that changes with every deletion, and only then."""
        stream = self._stream
        return stream.partition.start_offset, stream.next_offset - stream.messages

    def _scan(self, start: int, stop: int) -> int | None:
        """Count the matches between two offsets; None if they are too many or not in memory."""
        if stop - start > self._scan_max:
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
            subjects = self._matching_subjects(rows)
            matches = None if subjects is None else map(subjects.__contains__, rows.subjects)
            count += rows.count if matches is None else sum(matches)
            start = rows.offsets[-1] + 1
        return count

    def _matching(self, rows: Rows, limit: int) -> Rows:
        matching = self._matching_subjects(rows)
        if matching is None:
            return rows if rows.count <= limit else rows.part(0, limit)
        positions = [at for at, subject in enumerate(rows.subjects) if subject in matching]
        return rows.take(positions[:limit])

    def _matching_subjects(self, rows: Rows) -> set[bytes] | None:
        """The matching subjects of these rows, or None if all of them match."""
        if not self._filters:
            return None
        subjects = set(rows.subjects)
        matching = set(filter(self.wants, subjects))
        return None if len(matching) == len(subjects) else matching

    def _skip(self, offset: int) -> None:
        """Move the cursor past messages that do not match."""
        self.next_offset = offset
        counted = self._counted
        if counted is not None:
            stays = counted.start <= offset <= counted.stop
            self._counted = counted._replace(start=offset) if stays else None

    async def _read_matching(self, limit: int) -> Rows:
        while True:
            start, stop = self._range_start, self._stream.next_offset
            matches = [
                await self._stream.matching(subjects, start, limit) for subjects in self._filters
            ]
            offsets = list(islice(merge(*matches), limit))
            if not offsets:
                if self._range_start == start:
                    self._skip(max(start, stop))
                return NO_ROWS
            rows = await self._stream.read_intact(offsets)
            if rows.count:
                return rows
            self._skip(offsets[-1] + 1)


_EVERYTHING: Final = (Filter.parse(b">"),)


class StartPosition(NamedTuple):
    """The first offset to deliver. Between `start` and `picked_stop` the consumer delivers only the
    last message of each subject.
    """

    start: int
    picked_stop: int = 0


async def start_position(stream: Stream, config: ConsumerConfig) -> StartPosition:
    """The start position of a new consumer, as its deliver policy says."""
    policy = config.deliver_policy
    if policy == "new":
        return StartPosition(stream.next_offset)
    if policy == "by_start_sequence":
        return StartPosition(max(config.opt_start_seq - 1, stream.first_offset))
    if policy == "by_start_time":
        # Rounded up to a microsecond, so that no message from before the time is delivered.
        return StartPosition(await stream.offset_at(-(-parse_time(config.opt_start_time) // 1000)))
    if policy == "last":
        lasts = [await stream.last(subjects) for subjects in filters_of(config) or _EVERYTHING]
        offsets = [last for last in lasts if last is not None]
        return StartPosition(max(offsets, default=stream.next_offset))
    if policy == "last_per_subject":
        return StartPosition(stream.first_offset, stream.next_offset)
    return StartPosition(stream.first_offset)


async def create_feed(stream: Stream, config: ConsumerConfig, position: StartPosition) -> Feed:
    """The feed of a consumer that begins at a position."""
    start, picked_stop = position
    if start >= picked_stop:
        return Feed(stream, await _effective_filters(stream, config, start), start)
    picked = await _last_offsets(stream, config, position)
    first = picked[0] if picked else picked_stop
    filters = await _effective_filters(stream, config, first)
    return Feed(stream, filters, first, picked, picked_stop)


async def _last_offsets(
    stream: Stream, config: ConsumerConfig, position: StartPosition
) -> list[int]:
    """The last offsets of all matching subjects that lie in the range of the position."""
    offsets: list[int] = []
    for subjects in filters_of(config):
        after, more = b"", True
        while more:
            page = await stream.subjects(subjects, after, SUBJECTS_PAGE)
            offsets += [
                last for _, _, last in page if position.start <= last < position.picked_stop
            ]
            more = len(page) == SUBJECTS_PAGE
            after = page[-1][0] if page else b""
    return sorted(offsets)


async def _effective_filters(
    stream: Stream, config: ConsumerConfig, start: int
) -> Sequence[Filter]:
    """The filters, or none if they match every message that the stream has and accepts."""
    filters = filters_of(config)
    if not filters or not cover(config.filters, stream.config.subjects):
        return filters
    stop = stream.next_offset
    count = sum([await stream.count(subjects, start, stop) for subjects in filters])
    return () if count == stream.count_all(start, stop) else filters
