"""Subjects of a WAL file in memory: of the active file, and of sealed ones without a span.

A topic without queries by subject stores the columns and pays nothing more. The first query makes
the structure that it needs: a dict from subject to offsets, or the offsets that match a filter.
Both are extended by later queries.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from penstock.formats.postings import Postings
from penstock.log.subjects.bitmaps import (
    EMPTY,
    bits_where,
    entries_of,
    live_last,
    match_subjects,
    nbytes_of,
)
from penstock.model.subjects import Filter

SLICE_MESSAGES: Final = 4096
"""Messages entered into the dict at a time, which takes about two milliseconds."""
INLINE_MESSAGES: Final = 8192
"""Up to this many messages are searched on the event loop, more in slices or in a thread."""
FILTERS_MAX: Final = 32
FRESH_SUBJECTS_MAX: Final = 4096
"""New subjects after which the sorted column is made again."""

_PAGE_SUBJECTS: Final = 16384

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Threads(Protocol):
    """Runs a blocking call in a worker thread: `Workers.run`."""

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
    def behind(self) -> int:
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
        """Enter all messages into the dict, in slices between which other tasks run."""
        while self.behind:
            self.enter(SLICE_MESSAGES)
            if self.behind:
                await asyncio.sleep(0)

    async def page(self, chosen: Filter, after: bytes, limit: int, threads: Threads) -> Postings:
        """Entries of the first `limit` matching subjects after `after`, not sorted."""
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
        """The offsets that match; read-only. Only messages since the last call are searched."""
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
    """The first matching subjects after `after` in a sorted column."""
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


OffsetSet = int | bytes | BitMap64
"""The offsets of a subject: one, a few packed as int64, or many."""

_SHARDS: Final = 32
_SLOTS: Final = 1024
_SHARE: Final = bytes(
    min(_SHARDS - 1, int(_SHARDS * ((1 + 3 * slot / _SLOTS) ** 0.5 - 1))) for slot in range(_SLOTS)
)
"""The shard of each slot. Dicts double, so the shares are spread evenly between one and two."""
_PACKED_BYTES: Final = 8 * 32
_SUBJECT_BYTES: Final = 100
_PACK_BYTES: Final = 28
_BITMAP_BYTES: Final = 400
"""Measured bytes of a subject with one offset, without its text; of its second offset; of a bitmap
with few values."""


class SubjectMap:
    """A dict from subject to offsets that never blocks the event loop for long.

    A dict that grows is copied at once, which takes 66 ms at 1.5 million subjects. So there are
    many dicts of different sizes, which do not grow at the same time. The garbage collector does
    not track them, since it tracks none of their values.
    """

    def __init__(self) -> None:
        self._shards: tuple[dict[bytes, OffsetSet], ...] = tuple({} for _ in range(_SHARDS))
        self.nbytes = 0

    def counts(self) -> list[int]:
        """The number of subjects in each shard, as a mark for `since`."""
        return [len(shard) for shard in self._shards]

    def since(self, counts: list[int]) -> Iterator[bytes]:
        """Subjects that were added after `counts` was taken."""
        pairs = zip(self._shards, counts, strict=True)
        return chain.from_iterable(islice(shard, count, None) for shard, count in pairs)

    def get(self, subject: bytes) -> BitMap64:
        """The offsets of a subject; read-only, until messages are added."""
        return _as_bits(self._shards[_SHARE[hash(subject) % _SLOTS]].get(subject))

    def last(self, subject: bytes, deleted: BitMap64 | None, start: int) -> int | None:
        """The greatest offset of a subject from `start` on that is not deleted."""
        have = self._shards[_SHARE[hash(subject) % _SLOTS]].get(subject)
        if have is None:
            return None
        if isinstance(have, int) and (deleted is None or have not in deleted):
            return have if have >= start else None
        return live_last(_as_bits(have), deleted, start)

    def add_each(self, offset: int, subjects: list[bytes]) -> None:
        """Add consecutive offsets from `offset` on, one for each subject."""
        shards, share = self._shards, _SHARE
        size = 8 * len(subjects)
        for subject in subjects:
            shard = shards[share[hash(subject) % _SLOTS]]
            have = shard.get(subject)
            if have is None:
                shard[subject] = offset
                size += _SUBJECT_BYTES + len(subject)
            elif isinstance(have, BitMap64):
                have.add(offset)
            else:
                shard[subject] = _more(have, offset)
                if isinstance(have, int):
                    size += _PACK_BYTES
            offset += 1
        self.nbytes += size

    def add_range(self, subject: bytes, first: int, stop: int) -> None:
        """Add all offsets from `first` up to `stop` to one subject."""
        shard = self._shards[_SHARE[hash(subject) % _SLOTS]]
        have = shard.get(subject)
        if not isinstance(have, BitMap64):
            self.nbytes += _SUBJECT_BYTES + len(subject) + _BITMAP_BYTES
            shard[subject] = have = _as_bits(have).copy()
        have.add_range(first, stop)


def _as_bits(postings: OffsetSet | None) -> BitMap64:
    if postings is None:
        return EMPTY
    if isinstance(postings, int):
        return BitMap64([postings])
    return BitMap64(array("Q", postings)) if isinstance(postings, bytes) else postings


def _more(have: int | bytes, offset: int) -> OffsetSet:
    packed = have if isinstance(have, bytes) else have.to_bytes(8, "little")
    packed += offset.to_bytes(8, "little")
    return packed if len(packed) <= _PACKED_BYTES else _as_bits(packed)


_SMALL: Final = 16
_TAIL_MESSAGES: Final = 1024
_SHARED_MAX: Final = 1024
"""Pieces that are passed to the child process instead of the file."""
_PIECE_BYTES: Final = 512
_TAIL_BYTES: Final = 80
"""Measured bytes of a piece, and of a message in the tail."""


class Piece(NamedTuple):
    """Messages with consecutive offsets; `subject` is a single one if they share it."""

    first: int
    messages: int
    subject: bytes | pa.BinaryArray

    def slice(self, start: int, messages: int) -> Piece:
        subject = self.subject
        if not isinstance(subject, bytes):
            subject = subject.slice(start, messages)
        return Piece(self.first + start, messages, subject)

    def subjects(self) -> list[bytes]:
        if isinstance(self.subject, bytes):
            return [self.subject] * self.messages
        subjects: list[bytes] = self.subject.to_pylist()
        return subjects


class Pieces:
    """The messages of a partition in one file, as the columns in which they arrived.

    Messages are numbered from 0 in the order of their offsets.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.next = 0
        """The offset after the last one."""
        self.nbytes = 0
        self._pieces: list[Piece] = []
        self._numbers: list[int] = []
        self._tail: list[bytes] = []

    def add(self, piece: Piece) -> None:
        """Add messages; small pieces are gathered, since an object for each would cost more."""
        if piece.first != self.next or piece.messages > _SMALL or len(self._tail) >= _TAIL_MESSAGES:
            self._flush()
        if not self._lengthens(piece):
            if piece.messages > _SMALL:
                self._append(piece, self.messages)
            else:
                self._tail += piece.subjects()
                self.nbytes += _TAIL_BYTES * piece.messages
        self.messages += piece.messages
        self.next = piece.first + piece.messages

    def at(self, number: int) -> Piece:
        """The piece that starts with this message, which must exist."""
        in_tail = number - (self.messages - len(self._tail))
        if in_tail >= 0:
            return _joined(self._tail[in_tail:], self.next)
        index = bisect_right(self._numbers, number) - 1
        piece, start = self._pieces[index], number - self._numbers[index]
        return piece.slice(start, piece.messages - start) if start else piece

    def since(self, number: int) -> list[Piece]:
        """All pieces from this message on."""
        found: list[Piece] = []
        while number < self.messages:
            found.append(self.at(number))
            number += found[-1].messages
        return found

    def shared(self) -> list[Piece] | None:
        """All messages if they are few pieces with one subject each, else None."""
        if len(self._pieces) > _SHARED_MAX:
            return None
        pieces = self.since(0)
        return pieces if all(isinstance(piece.subject, bytes) for piece in pieces) else None

    def _lengthens(self, piece: Piece) -> bool:
        """Extend the last piece if it has the same subject, as in a typed topic; return whether."""
        if self._tail or not self._pieces or piece.first != self.next:
            return False
        last = self._pieces[-1]
        shared = isinstance(piece.subject, bytes) and isinstance(last.subject, bytes)
        if not shared or last.subject != piece.subject:
            return False
        self._pieces[-1] = last._replace(messages=last.messages + piece.messages)
        return True

    def _flush(self) -> None:
        if self._tail:
            messages = len(self._tail)
            self._append(_joined(self._tail, self.next), self.messages - messages)
            self.nbytes -= _TAIL_BYTES * messages
            self._tail = []

    def _append(self, piece: Piece, number: int) -> None:
        subject = piece.subject
        if not isinstance(subject, bytes):
            subject = _owned(subject)
            self.nbytes += subject.nbytes
        self._pieces.append(Piece(piece.first, piece.messages, subject))
        self._numbers.append(number)
        self.nbytes += _PIECE_BYTES


def match_pieces(pieces: list[Piece], chosen: Filter) -> BitMap64:
    """The offsets that match; most of the work releases the GIL."""
    found = BitMap64()
    for first, messages, subject in pieces:
        if not isinstance(subject, bytes):
            found |= bits_where(match_subjects(subject, chosen), first)
        elif chosen.matches(subject):
            found.add_range(first, first + messages)
    return found


def _joined(subjects: list[bytes], stop: int) -> Piece:
    """Messages up to the offset `stop` as one piece."""
    messages = len(subjects)
    if subjects.count(subjects[0]) == messages:
        return Piece(stop - messages, messages, subjects[0])
    return Piece(stop - messages, messages, pa.array(subjects, pa.binary()))


def _owned(subjects: pa.BinaryArray) -> pa.BinaryArray:
    """A copy of a column that is part of a frame, which would keep the frame in memory."""
    if all(buffer is None or buffer.parent is None for buffer in subjects.buffers()):
        return subjects
    return pa.concat_arrays([subjects, subjects.slice(0, 0)])
