"""Merge neighbouring spans into one, in the child process, and leave out what is deleted.

Few large spans are asked faster than many small ones, and a span most of which is deleted shrinks
when it is merged, alone if need be. A merge works in steps, so that it never keeps the child from
the next sealed file for long; its state lives in the child and is lost with it, without harm.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from penstock.formats import postings
from penstock.formats.postings import Entries
from penstock.log.subjects.bits import bits_of, ranges_of
from penstock.log.subjects.file import SpanName, SpanWriter
from penstock.log.subjects.store import Span, SpanDamaged
from penstock.model.errors import PenstockError

STEP_SECONDS: Final = 0.2
READ_BLOCKS: Final = 32
"""How far each span is read ahead: together with their number it bounds the memory of a merge."""

_merges: dict[Path, Generator[None, None, Path]] = {}


class Merge(NamedTuple):
    """Spans to merge, and of their partitions the first kept offset and the deleted ones."""

    spans: list[Path]
    level: int
    kept: dict[int, tuple[int, bytes]]


class MergeFailed(PenstockError):
    """The merge is gone: `damaged` could not be read, or the process ended if it is None."""

    def __init__(self, damaged: Path | None) -> None:
        super().__init__(damaged)
        self.damaged = damaged


def begin(plan: Merge) -> None:
    """Prepare a merge; it is known by its first span."""
    give_up(plan.spans[0])
    _merges[plan.spans[0]] = _merge(plan)


def step(first: Path) -> Path | None:
    """Work for a moment; the path of the new span when it is finished. Raises MergeFailed."""
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
    """Drop a merge that is under way, if there is one."""
    merge = _merges.pop(first, None)
    if merge is not None:
        merge.close()


def _merge(plan: Merge) -> Generator[None, None, Path]:
    spans = [Span(path) for path in plan.spans]
    partitions: set[int] = set().union(*(span.extents for span in spans))
    name = SpanName(
        spans[0].name.first, spans[-1].name.last, 1 + max(span.name.edition for span in spans)
    )
    writer = SpanWriter(spans[0].path.parent, name, plan.level)
    try:
        for partition in sorted(partitions):
            dead = _dead(*plan.kept.get(partition, (0, b"")))
            for entries in _sorted([s.blocks(partition) for s in spans if partition in s.extents]):
                writer.add(partition, _without(entries, dead) if dead else entries)
                yield
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Source:
    """One span's entries of a partition, read ahead."""

    def __init__(self, blocks: Iterator[Entries]) -> None:
        self._blocks = blocks
        self._entries: Entries | None = None
        self.fill()

    def fill(self) -> bool:
        """Read on if all was taken; whether there is anything."""
        if self._entries is None:
            parts = list(islice(self._blocks, READ_BLOCKS))
            self._entries = postings.concatenate(parts) if parts else None
        return self._entries is not None

    def last(self) -> tuple[bytes, int]:
        """The entry up to which this source is known."""
        return self._key(-1)

    def take(self, last: tuple[bytes, int]) -> Entries:
        """Entries up to `last`, which are then gone from here."""
        entries = self._entries
        assert entries is not None
        stop = bisect_right(range(len(entries)), last, key=self._key)
        self._entries = entries.slice(stop, len(entries)) if stop < len(entries) else None
        return entries.slice(0, stop)

    def _key(self, index: int) -> tuple[bytes, int]:
        assert self._entries is not None
        return self._entries.subjects[index].as_py(), int(self._entries.firsts[index])


def _sorted(sources: list[Iterator[Entries]]) -> Iterator[Entries]:
    """Entries of all sources in order, a bounded stretch at a time."""
    left = [_Source(source) for source in sources]
    while left := [source for source in left if source.fill()]:
        last = min(source.last() for source in left)
        yield postings.arrange(postings.concatenate([source.take(last) for source in left]))


def _dead(start: int, deleted: bytes) -> BitMap64:
    dead = BitMap64.deserialize(deleted) if deleted else BitMap64()
    if start:
        dead.add_range(0, start)
    return dead


def _without(entries: Entries, dead: BitMap64) -> Entries:
    """The entries without dead offsets; a range with a hole becomes several entries."""
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


def _split(entries: Entries, dead: BitMap64) -> Iterator[Entries]:
    columns = (entries.subjects.to_pylist(), entries.firsts.tolist(), entries.lengths.tolist())
    for subject, first, length in zip(*columns, strict=True):
        bits = BitMap64()
        bits.add_range(first, first + length)
        firsts, lengths = ranges_of(bits - dead)
        yield Entries(pa.array([subject] * len(firsts), pa.binary()), firsts, lengths)
