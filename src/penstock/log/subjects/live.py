"""Subjects of a WAL file in memory: of the active one, and of a sealed one until its span is made.

A topic nobody asks by subject keeps columns and pays nothing more. The first question makes what
it needs: a dict from subject to offsets, or the offsets that match a filter. Both remember how far
they have come.
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

from penstock.formats.postings import Entries
from penstock.log.subjects.bits import EMPTY, entries_of, match_subjects, nbytes_of
from penstock.log.subjects.map import SubjectMap
from penstock.log.subjects.pieces import Piece, Pieces, match_pieces
from penstock.model.subjects import Filter

SLICE_MESSAGES: Final = 4096
"""Messages taken into the dict at a time: about two milliseconds."""
INLINE_MESSAGES: Final = 8192
"""Up to this many messages are looked through on the loop, more in slices or in a thread."""
FILTERS_MAX: Final = 32
FRESH_SUBJECTS_MAX: Final = 4096
"""Subjects that came after the sorted column was made, before it is made anew."""

_PAGE_SUBJECTS: Final = 16384

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Threads(Protocol):
    """Runs a blocking call in a worker thread: `Workers.run`."""

    def __call__(
        self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[_T]: ...


class Lane:
    """One partition of a file."""

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
        """Memory this holds, about."""
        ordered: int = self._ordered.nbytes
        return self._pieces.nbytes + self._map.nbytes + self._match_bytes + ordered

    @property
    def next(self) -> int:
        """The offset behind the last one."""
        return self._pieces.next

    def add(self, piece: Piece) -> None:
        self._pieces.add(piece)

    def shared(self) -> list[Piece] | None:
        """All messages, if they are few pieces that share a subject each; else None."""
        return self._pieces.shared()

    # -- by subject

    @property
    def behind(self) -> int:
        """Messages the dict does not have yet."""
        return self._pieces.messages - self._entered

    def get(self, subject: bytes) -> BitMap64:
        """Offsets of a subject as far as the dict has come; for reading, at once."""
        return self._map.get(subject)

    def last(self, subject: bytes, deleted: BitMap64 | None, start: int) -> int | None:
        """The greatest live offset of a subject as far as the dict has come."""
        return self._map.last(subject, deleted, start)

    def enter(self, limit: int) -> None:
        """Take about `limit` more messages into the dict."""
        while limit > 0 and self.behind:
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
        """Take all into the dict, in slices that leave the loop its turns."""
        while self.behind:
            self.enter(SLICE_MESSAGES)
            if self.behind:
                await asyncio.sleep(0)

    async def page(self, chosen: Filter, after: bytes, limit: int, threads: Threads) -> Entries:
        """Entries of the first `limit` matching subjects behind `after`, not sorted."""
        await self.settle()
        fresh = list(self._map.since(self._counts))
        if len(fresh) > FRESH_SUBJECTS_MAX:
            counts = self._map.counts()
            column = await threads(_sorted_column, self._ordered, fresh)
            self._counts, self._ordered = counts, column
            fresh = list(self._map.since(counts))
        found = await threads(_page, self._ordered, chosen, after, limit)
        found += [name for name in fresh if name > after and chosen.matches(name)]
        return entries_of((name, self.get(name)) for name in sorted(found)[:limit])

    # -- by filter

    async def match(self, chosen: Filter, threads: Threads) -> BitMap64:
        """Offsets that match; only what came since the last call is looked at. For reading."""
        upto = self._pieces.messages
        number, _ = self._matches.get(chosen, (0, EMPTY))
        pieces = self._pieces.since(number)
        if upto - number <= INLINE_MESSAGES:
            more = match_pieces(pieces, chosen)
        else:
            more = await threads(match_pieces, pieces, chosen)
        return self._learn(chosen, upto, more)

    def _learn(self, chosen: Filter, upto: int, more: BitMap64) -> BitMap64:
        number, bits = self._matches.pop(chosen, (0, None))
        if bits is None:
            bits = more
        else:
            self._match_bytes -= nbytes_of(bits)
            bits |= more
        self._match_bytes += nbytes_of(bits)
        self._matches[chosen] = (max(number, upto), bits)
        if len(self._matches) > FILTERS_MAX:
            _, (_, gone) = self._matches.popitem(last=False)
            self._match_bytes -= nbytes_of(gone)
        return bits


def _sorted_column(known: pa.BinaryArray, fresh: list[bytes]) -> pa.BinaryArray:
    column = pa.concat_arrays([known, pa.array(fresh, pa.binary())])
    return column.take(pc.sort_indices(column))


def _page(column: pa.BinaryArray, chosen: Filter, after: bytes, limit: int) -> list[bytes]:
    """The first matching subjects behind `after` of a sorted column."""
    low = max(after + b"\0", chosen.prefix)
    start = bisect_left(range(len(column)), low, key=lambda n: column[n].as_py())
    found: list[bytes] = []
    while start < len(column) and len(found) < limit:
        part = column.slice(start, _PAGE_SUBJECTS)
        picks = np.flatnonzero(match_subjects(part, chosen))
        found += part.take(pa.array(picks)).to_pylist()
        if not part[-1].as_py().startswith(chosen.prefix):
            break
        start += len(part)
    return found[:limit]
