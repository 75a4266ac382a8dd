"""Chooses neighbouring spans and merges them into one without deleted offsets.

Queries over few large spans are faster than over many small ones. A span of mostly deleted messages
shrinks when it is merged, alone if need be. A merge runs in the child process in steps, so that it
never delays the next sealed file for long. Its state is lost with the child, without harm.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from penstock.formats import postings
from penstock.formats.postings import Postings
from penstock.log.subjects.bitmaps import LiveOffsets, bits_of, range_count, ranges_of
from penstock.log.subjects.span import IndexSpan, SpanDamaged, SpanName, SpanWriter
from penstock.model.errors import PenstockError
from penstock.model.units import PartitionId

STEP_SECONDS: Final = 0.2
READ_BLOCKS: Final = 32
"""Blocks of each span that are read ahead; bounds the memory of a merge."""

_merges: dict[Path, Generator[None, None, Path]] = {}


class Merge(NamedTuple):
    """Spans to merge and, for each partition, its start and its deleted offsets."""

    spans: list[Path]
    level: int
    partitions: dict[int, tuple[int, bytes]]


class MergeFailed(PenstockError):
    """The merge has failed: `damaged` is unreadable, or the process ended if it is None."""

    code = "index_merge_failed"

    def __init__(self, damaged: Path | None) -> None:
        super().__init__(damaged)
        self.damaged = damaged


def begin(plan: Merge) -> None:
    """Prepare a merge, which is identified by its first span."""
    give_up(plan.spans[0])
    _merges[plan.spans[0]] = _merge(plan)


def step(first: Path) -> Path | None:
    """Do one step; return the path of the new span if that was the last. Raises MergeFailed."""
    if first not in _merges:
        raise MergeFailed(None)
    deadline = time.monotonic() + STEP_SECONDS
    try:
        while time.monotonic() < deadline:
            next(_merges[first])
    except StopIteration as stop:
        del _merges[first]
        return Path(stop.value)
    except BaseException as error:
        del _merges[first]
        if isinstance(error, SpanDamaged):
            raise MergeFailed(error.span.path) from error
        raise
    return None


def give_up(first: Path) -> None:
    """Cancel a merge, if there is one."""
    merge = _merges.pop(first, None)
    if merge is not None:
        merge.close()


def _merge(plan: Merge) -> Generator[None, None, Path]:
    spans = [IndexSpan(path) for path in plan.spans]
    partitions: set[int] = set().union(*(span.extents for span in spans))
    name = SpanName(
        spans[0].name.first, spans[-1].name.last, 1 + max(span.name.edition for span in spans)
    )
    writer = SpanWriter(spans[0].path.parent, name, plan.level)
    try:
        for partition in sorted(partitions):
            dead = _dead(*plan.partitions.get(partition, (0, b"")))
            for entries in _sorted([s.blocks(partition) for s in spans if partition in s.extents]):
                writer.add(partition, _without(entries, dead) if dead else entries)
                yield
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Source:
    """Entries of a partition in one span, read ahead."""

    def __init__(self, blocks: Iterator[Postings]) -> None:
        self._blocks = blocks
        self._entries: Postings | None = None
        self.fill()

    def fill(self) -> bool:
        """Read more if all entries were taken; return whether there are any."""
        if self._entries is None:
            parts = list(islice(self._blocks, READ_BLOCKS))
            self._entries = postings.concatenate(parts) if parts else None
        return self._entries is not None

    def last(self) -> tuple[bytes, int]:
        """The last entry that was read."""
        return self._key(-1)

    def take(self, last: tuple[bytes, int]) -> Postings:
        """Remove and return the entries up to `last`."""
        entries = self._entries
        assert entries is not None
        stop = bisect_right(range(len(entries)), last, key=self._key)
        self._entries = entries.slice(stop, len(entries)) if stop < len(entries) else None
        return entries.slice(0, stop)

    def _key(self, index: int) -> tuple[bytes, int]:
        assert self._entries is not None
        return self._entries.subjects[index].as_py(), int(self._entries.firsts[index])


def _sorted(sources: list[Iterator[Postings]]) -> Iterator[Postings]:
    """Yield the entries of all sources in order, in bounded parts."""
    left = [_Source(source) for source in sources]
    while left := [source for source in left if source.fill()]:
        last = min(source.last() for source in left)
        yield postings.arrange(postings.concatenate([source.take(last) for source in left]))


def _dead(start: int, deleted: bytes) -> BitMap64:
    dead = BitMap64.deserialize(deleted) if deleted else BitMap64()
    if start:
        dead.add_range(0, start)
    return dead


def _without(entries: Postings, dead: BitMap64) -> Postings:
    """The entries without deleted offsets; a range with gaps becomes several entries."""
    hit = np.frombuffer((bits_of(entries.firsts, entries.lengths) & dead).to_array(), np.int64)
    if not len(hit):
        return entries
    ends = entries.firsts + entries.lengths
    gone = np.searchsorted(hit, ends) - np.searchsorted(hit, entries.firsts)
    whole = entries.select(gone == 0)
    holed = entries.select((gone > 0) & (gone < entries.lengths))
    if not len(holed):
        return whole
    return postings.arrange(postings.concatenate([whole, *_split(holed, dead)]))


def _split(entries: Postings, dead: BitMap64) -> Iterator[Postings]:
    columns = (entries.subjects.to_pylist(), entries.firsts.tolist(), entries.lengths.tolist())
    for subject, first, length in zip(*columns, strict=True):
        bits = BitMap64()
        bits.add_range(first, first + length)
        firsts, lengths = ranges_of(bits - dead)
        yield Postings(pa.array([subject] * len(firsts), pa.binary()), firsts, lengths)


FAN_IN: Final = 8
"""Neighbours of one level that are merged into one span of the next, so that the number of spans
grows with the logarithm of the number of files."""
SPAN_ENTRIES_MAX: Final = 1 << 27
"""Limit of a merged span; it bounds the time and the extra disk space of a merge."""

_PARTITIONS_A_TURN: Final = 256


def live_messages(span: IndexSpan, partition: int, live_offsets: LiveOffsets) -> int:
    """An upper limit of the messages of a span that are not deleted; gaps are counted too."""
    extent, name = span.extents[partition], PartitionId(partition)
    return range_count(
        max(extent.first, live_offsets.start(name)), extent.next, live_offsets.bitmap(name)
    )


async def choose(
    spans: Sequence[IndexSpan], live_offsets: LiveOffsets, adjoining: bool = False
) -> list[IndexSpan]:
    """Choose spans to merge: a mostly deleted one, else neighbours of one level, else none.

    With `adjoining`, only neighbours without a missing number between them, which may belong to a
    lost span.
    """
    for span in spans:
        if await _mostly_dead(span, live_offsets):
            return [span]
    for start in range(len(spans) - FAN_IN + 1):
        filter_ = list(spans[start : start + FAN_IN])
        one_level = len({span.level for span in filter_}) == 1
        if adjoining and any(a.name.last + 1 != b.name.first for a, b in pairwise(filter_)):
            continue
        if one_level and sum(span.entries for span in filter_) <= SPAN_ENTRIES_MAX:
            return filter_
    return []


def merge_of(spans: list[IndexSpan], live_offsets: LiveOffsets) -> Merge:
    """The merge of these spans, with the deletions in the range of their offsets."""
    facts: dict[int, tuple[int, bytes]] = {}
    for partition in {p for span in spans for p in span.extents}:
        extents = [span.extents[partition] for span in spans if partition in span.extents]
        deleted = live_offsets.bitmap(PartitionId(partition))
        dead = b""
        if deleted is not None:
            covered = BitMap64()
            covered.add_range(min(e.first for e in extents), max(e.next for e in extents))
            dead = (covered & deleted).serialize()
        facts[partition] = (live_offsets.start(PartitionId(partition)), dead)
    level = spans[0].level + (len(spans) > 1)
    return Merge([span.path for span in spans], level, facts)


async def _mostly_dead(span: IndexSpan, live_offsets: LiveOffsets) -> bool:
    live = total = 0
    for number, (partition, extent) in enumerate(span.extents.items(), 1):
        live += live_messages(span, partition, live_offsets)
        total += extent.messages
        if number % _PARTITIONS_A_TURN == 0:
            await asyncio.sleep(0)
    return 2 * live < total
