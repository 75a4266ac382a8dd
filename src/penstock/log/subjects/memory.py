"""Subjects of a WAL file in memory: of the active file, and of sealed ones without a span.

A topic without queries by subject stores the columns and pays nothing more. The first query makes
the structure that it needs: a dict from subject to offsets, or the offsets that match a filter.
Both are extended by later queries.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from penstock.formats.postings import Postings
from penstock.log.subjects.bitmaps import EMPTY, entries_of, match_subjects, nbytes_of
from penstock.log.subjects.pieces import Piece, Pieces, match_pieces
from penstock.log.subjects.subject_map import SubjectMap
from penstock.model.subjects import Filter

SLICE_MESSAGES: Final = 4096
"""Messages entered into the dict at a time, which takes about two milliseconds."""
INLINE_MESSAGES: Final = 8192
"""Up to this many messages are searched on the event loop, more in slices or in a thread."""
FILTERS_MAX: Final = 32
FRESH_SUBJECTS_MAX: Final = 4096
"""New subjects after which the sorted column is rebuilt."""

_PAGE_SUBJECTS: Final = 16384

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Threads(Protocol):
    """Runs a blocking call in a worker thread, as `WorkerThreads.run` does."""

    def __call__(
        self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[_T]: ...


class Lane:
    """The subjects of one partition of a file."""

    def __init__(self) -> None:
        self._pieces = Pieces()
        self._map = SubjectMap()
        self._entered = 0
        self._matches: OrderedDict[Filter, tuple[int, BitMap64]] = OrderedDict()
        self._counts = self._map.counts()
        self._ordered = pa.array([], pa.binary())
        self._match_bytes = 0

    @property
    def nbytes(self) -> int:
        """Approximate memory use."""
        ordered: int = self._ordered.nbytes
        return self._pieces.nbytes + self._map.nbytes + self._match_bytes + ordered

    @property
    def next(self) -> int:
        """The offset after the last one."""
        return self._pieces.next

    def add(self, piece: Piece) -> None:
        self._pieces.add(piece)

    def shared(self) -> list[Piece] | None:
        """All messages if they are few pieces with one subject each, else None."""
        return self._pieces.shared()

    # -- by subject

    @property
    def unindexed(self) -> int:
        """Messages that are not in the dict yet."""
        return self._pieces.messages - self._entered

    def get(self, subject: bytes) -> BitMap64:
        """The offsets of a subject in the dict; read-only, until messages are added."""
        return self._map.get(subject)

    def last(self, subject: bytes, deleted: BitMap64 | None, start: int) -> int | None:
        """The greatest live offset of a subject in the dict."""
        return self._map.last(subject, deleted, start)

    def enter(self, limit: int) -> None:
        """Enter about `limit` more messages into the dict."""
        while limit > 0 and self.unindexed:
            piece = self._pieces.at(self._entered)
            if isinstance(piece.subject, bytes) and piece.messages > 1:
                self._map.add_range(piece.subject, piece.first, piece.first + piece.messages)
                limit -= 1
            else:
                piece = piece.slice(0, min(limit, piece.messages))
                self._map.add_each(piece.first, piece.subjects())
                limit -= piece.messages
            self._entered += piece.messages

    async def settle(self) -> None:
        """Enter all messages into the dict, in slices between which other tasks run."""
        while self.unindexed:
            self.enter(SLICE_MESSAGES)
            if self.unindexed:
                await asyncio.sleep(0)

    async def page(self, filter_: Filter, after: bytes, limit: int, threads: Threads) -> Postings:
        """Entries of the first `limit` matching subjects after `after`, not sorted."""
        await self.settle()
        fresh = list(self._map.since(self._counts))
        if len(fresh) > FRESH_SUBJECTS_MAX:
            counts = self._map.counts()
            column = await threads(_sorted_column, self._ordered, fresh)
            self._counts, self._ordered = counts, column
            fresh = list(self._map.since(counts))
        found = await threads(_page, self._ordered, filter_, after, limit)
        found += [name for name in fresh if name > after and filter_.matches(name)]
        return entries_of((name, self.get(name)) for name in sorted(found)[:limit])

    # -- by filter

    async def match(self, filter_: Filter, threads: Threads) -> BitMap64:
        """The offsets that match; read-only. Only messages since the last call are searched."""
        upto = self._pieces.messages
        number, _ = self._matches.get(filter_, (0, EMPTY))
        pieces = self._pieces.since(number)
        if upto - number <= INLINE_MESSAGES:
            more = match_pieces(pieces, filter_)
        else:
            more = await threads(match_pieces, pieces, filter_)
        return self._learn(filter_, upto, more)

    def _learn(self, filter_: Filter, upto: int, more: BitMap64) -> BitMap64:
        number, bits = self._matches.pop(filter_, (0, None))
        if bits is None:
            bits = more
        else:
            self._match_bytes -= nbytes_of(bits)
            bits |= more
        self._match_bytes += nbytes_of(bits)
        self._matches[filter_] = (max(number, upto), bits)
        if len(self._matches) > FILTERS_MAX:
            _, (_, gone) = self._matches.popitem(last=False)
            self._match_bytes -= nbytes_of(gone)
        return bits


def _sorted_column(known: pa.BinaryArray, fresh: list[bytes]) -> pa.BinaryArray:
    column = pa.concat_arrays([known, pa.array(fresh, pa.binary())])
    return column.take(pc.sort_indices(column))


def _page(column: pa.BinaryArray, filter_: Filter, after: bytes, limit: int) -> list[bytes]:
    """The first matching subjects after `after` in a sorted column."""
    low = max(after + b"\0", filter_.prefix)
    start = bisect_left(range(len(column)), low, key=lambda n: column[n].as_py())
    found: list[bytes] = []
    while start < len(column) and len(found) < limit:
        part = column.slice(start, _PAGE_SUBJECTS)
        picks = np.flatnonzero(match_subjects(part, filter_))
        found += part.take(pa.array(picks)).to_pylist()
        if not part[-1].as_py().startswith(filter_.prefix):
            break
        start += len(part)
    return found[:limit]
