"""The subjects of a WAL file's messages, as the columns in which they arrived."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

import pyarrow as pa
from pyroaring import BitMap64

from penstock.log.subjects.bitmaps import bits_where, match_subjects
from penstock.model.subjects import Filter

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


def match_pieces(pieces: list[Piece], filter_: Filter) -> BitMap64:
    """The offsets that match; most of the work releases the GIL."""
    found = BitMap64()
    for first, messages, subject in pieces:
        if not isinstance(subject, bytes):
            found |= bits_where(match_subjects(subject, filter_), first)
        elif filter_.matches(subject):
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
