"""A dict from subject to offsets that never blocks the event loop for long."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from pyroaring import BitMap64

from penstock.log.subjects.bitmaps import EMPTY, live_last

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
