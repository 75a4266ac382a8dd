"""A dict from subject to offsets that never stops the loop for long.

A dict that grows is copied at once: 66 ms at a million and a half subjects. So there are many, of
unequal shares, which do not grow at the same time. The garbage collector does not track them, since
it tracks nothing they hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from pyroaring import BitMap64

from penstock.log.subjects.bits import EMPTY, live_last

Postings = int | bytes | BitMap64
"""Offsets of a subject: one, a few packed as int64, or many."""

_SHARDS: Final = 32
_SLOTS: Final = 1024
_SHARE: Final = bytes(
    min(_SHARDS - 1, int(_SHARDS * ((1 + 3 * slot / _SLOTS) ** 0.5 - 1))) for slot in range(_SLOTS)
)
"""Shard of each slot: a dict doubles, so the shares lie evenly between one and two."""
_PACKED_BYTES: Final = 8 * 32
_SUBJECT_BYTES: Final = 100
_PACK_BYTES: Final = 28
_BITMAP_BYTES: Final = 400
"""What a subject costs with one offset and without its own bytes; its second offset; a bitmap with
few values. Measured."""


class SubjectMap:
    """Offsets by subject."""

    def __init__(self) -> None:
        self._shards: tuple[dict[bytes, Postings], ...] = tuple({} for _ in range(_SHARDS))
        self.nbytes = 0

    def counts(self) -> list[int]:
        """How many subjects there are, in parts; a mark for `since`."""
        return [len(shard) for shard in self._shards]

    def since(self, counts: list[int]) -> Iterator[bytes]:
        """Subjects that came after `counts` was taken."""
        pairs = zip(self._shards, counts, strict=True)
        return chain.from_iterable(islice(shard, count, None) for shard, count in pairs)

    def get(self, subject: bytes) -> BitMap64:
        """Offsets of a subject; for reading, and only until more are added."""
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
        """Add neighbouring offsets from `offset` on, one for each subject."""
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


def _as_bits(postings: Postings | None) -> BitMap64:
    if postings is None:
        return EMPTY
    if isinstance(postings, int):
        return BitMap64([postings])
    return BitMap64(array("Q", postings)) if isinstance(postings, bytes) else postings


def _more(have: int | bytes, offset: int) -> Postings:
    packed = have if isinstance(have, bytes) else have.to_bytes(8, "little")
    packed += offset.to_bytes(8, "little")
    return packed if len(packed) <= _PACKED_BYTES else _as_bits(packed)
