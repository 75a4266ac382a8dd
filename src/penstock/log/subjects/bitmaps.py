"""Sets of offsets as roaring bitmaps, built from postings and queried without deleted offsets.

A call does at most a few windows of work or one difference of bitmaps in C, so that it may run on
the event loop.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from penstock.formats.postings import Int64s, Postings
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId

Mask = npt.NDArray[np.bool_]

EMPTY: Final = BitMap64()
"""The shared empty result; never changed."""

_LONG: Final = 32
"""Ranges from this length on are added one by one, shorter ones are expanded together."""
_WINDOWS_MAX: Final = 4
_WINDOW_MAX: Final = 4096
_RANGE_WINDOW: Final = 1 << 16
_OBJECT_BYTES: Final = 400
"""Bytes of a cached bitmap beyond its containers."""
_CONTAINER_BYTES: Final = 48


class LiveOffsets(Protocol):
    """The offsets of each partition that are not deleted: a part of the log's state."""

    def start(self, partition: PartitionId, /) -> Offset: ...
    def next(self, partition: PartitionId, /) -> Offset: ...
    def bitmap(self, partition: PartitionId, /) -> BitMap64 | None: ...


def bits_of(firsts: Int64s, lengths: Int64s) -> BitMap64:
    """The set of offsets of entries, which may be in any order."""
    if not len(firsts):
        return EMPTY
    bits = BitMap64()
    long = lengths >= _LONG
    for first, length in zip(firsts[long].tolist(), lengths[long].tolist(), strict=True):
        bits.add_range(first, first + length)
    short = ~long
    bits.update(_array(_expand(firsts[short], lengths[short])))
    bits.run_optimize()
    return bits


def bits_where(mask: Mask, first: int) -> BitMap64:
    """The set of `first` plus the position of every true value."""
    return BitMap64(_array(np.flatnonzero(mask) + first))


def match_subjects(subjects: pa.BinaryArray, filter_: Filter) -> Mask:
    """Which of the subjects match; runs in C and releases the GIL."""
    if filter_.literal:
        found = pc.equal(subjects, pa.scalar(filter_.text, pa.binary()))
    else:
        found = pc.match_substring_regex(subjects, rf"\A(?s:{filter_.pattern})\z")
    mask: Mask = found.to_numpy(zero_copy_only=False)
    return mask


def ranges_of(bits: BitMap64) -> tuple[Int64s, Int64s]:
    """Firsts and lengths of the runs of consecutive offsets in a set, which must not be empty."""
    offsets = np.frombuffer(bits.to_array(), np.int64)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(offsets) != 1)))
    return offsets[starts], np.diff(np.append(starts, len(offsets)))


def entries_of(subjects: Iterable[tuple[bytes, BitMap64]]) -> Postings:
    """Entries of subjects with their offsets, in this order."""
    names: list[bytes] = []
    firsts, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, bits in subjects:
        ranges = ranges_of(bits)
        names += [name] * len(ranges[0])
        firsts.append(ranges[0])
        lengths.append(ranges[1])
    return Postings(pa.array(names, pa.binary()), np.concatenate(firsts), np.concatenate(lengths))


def live_from(bits: BitMap64, deleted: BitMap64 | None, start: int, limit: int) -> list[int]:
    """The first `limit` offsets of the set from `start` on that are not deleted, in order."""
    if deleted is None:
        return list(islice(bits.iter_equal_or_larger(start), limit))
    live: list[int] = []
    window = limit
    for _ in range(_WINDOWS_MAX):
        found = list(islice(bits.iter_equal_or_larger(start), window))
        live += BitMap64(found) - deleted
        if len(live) >= limit or len(found) < window:
            return live[:limit]
        start = found[-1] + 1
        window = min(2 * window, max(limit, _WINDOW_MAX))
    # A long stretch of deleted offsets: one difference in C is cheaper than walking it.
    live += islice((bits - deleted).iter_equal_or_larger(start), limit - len(live))
    return live


def live_last(bits: BitMap64, deleted: BitMap64 | None, start: int) -> int | None:
    """The greatest offset of the set, not below `start`, that is not deleted."""
    if not bits:
        return None
    last = bits.max()
    if deleted is not None and last in deleted:
        left = bits - deleted
        last = left.max() if left else -1
    return last if last >= start else None


def live_count(bits: BitMap64, deleted: BitMap64 | None, start: int, stop: int) -> int:
    """How many offsets of the set from `start` up to `stop` are not deleted."""
    if stop <= start:
        return 0
    count = bits.range_cardinality(start, stop)
    if deleted is None or not count or not bits.intersect(deleted):
        return count
    return count - (bits & deleted).range_cardinality(start, stop)


def range_from(start: int, stop: int, deleted: BitMap64 | None, limit: int) -> list[int]:
    """Like `live_from` for the set of all offsets from `start` up to `stop`."""
    live: list[int] = []
    window = max(limit, _RANGE_WINDOW)
    while start < stop and len(live) < limit:
        end = min(stop, start + window)
        live += islice(_range(start, end, deleted), limit - len(live))
        start, window = end, 2 * window
    return live


def range_last(start: int, stop: int, deleted: BitMap64 | None) -> int | None:
    """Like `live_last` for the set of all offsets from `start` up to `stop`."""
    window = _RANGE_WINDOW
    while start < stop:
        first = max(start, stop - window)
        left = _range(first, stop, deleted)
        if left:
            return left.max()
        stop, window = first, 2 * window
    return None


def range_count(start: int, stop: int, deleted: BitMap64 | None) -> int:
    """Like `live_count` for the set of all offsets."""
    if stop <= start:
        return 0
    return stop - start - (deleted.range_cardinality(start, stop) if deleted is not None else 0)


def nbytes_of(bits: BitMap64) -> int:
    """Approximate memory of a bitmap."""
    facts = bits.get_statistics()
    size = facts["n_bytes_array_containers"] + facts["n_bytes_run_containers"]
    size += facts["n_bytes_bitset_containers"] + _CONTAINER_BYTES * facts["n_containers"]
    return size + _OBJECT_BYTES


class MatchCache:
    """Caches which offsets match a filter in parts that never change.

    The least recently used entry is evicted first. All topics may share one cache.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._found: OrderedDict[Hashable, tuple[BitMap64, int]] = OrderedDict()
        self.nbytes = 0

    def get(self, key: Hashable) -> BitMap64 | None:
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key][0]

    def put(self, key: Hashable, bits: BitMap64) -> None:
        self.forget(key)
        size = nbytes_of(bits)
        self._found[key] = (bits, size)
        self.nbytes += size
        while self.nbytes > self._bytes_max and self._found:
            self.nbytes -= self._found.popitem(last=False)[1][1]

    def forget(self, key: Hashable) -> None:
        if key in self._found:
            self.nbytes -= self._found.pop(key)[1]


def _range(start: int, stop: int, deleted: BitMap64 | None) -> BitMap64:
    bits = BitMap64()
    bits.add_range(start, stop)
    return bits if deleted is None else bits - deleted


def _expand(firsts: Int64s, lengths: Int64s) -> Int64s:
    """Every offset of the ranges, ascending: roaring adds sorted values five times faster."""
    if not len(firsts):
        return firsts
    before = np.cumsum(lengths) - lengths
    offsets = np.repeat(firsts - before, lengths) + np.arange(int(lengths.sum()))
    offsets.sort()
    return offsets


def _array(offsets: Int64s) -> array[int]:
    """pyroaring reads an array four times faster than numpy's."""
    return array("Q", offsets.astype(np.uint64).tobytes())
