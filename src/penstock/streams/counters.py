"""Streams of counters: each message stores the sum of its subject, and its increment as a header.

Deletions count too: the sum of a subject is what its last existing message says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Final

from penstock.model.subjects import Filter
from penstock.streams.appender import Appender
from penstock.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.counter_values import ZERO, value_of
from penstock.wire.jetstream.errors import ApiError

SUMS_MAX: Final = 10_000
"""Number of subjects whose sums are cached."""
DIGITS_MAX: Final = 100
"""Longer sums are looked up instead of cached."""
NOWHERE: Final = -1
"""Replaces the offset where a subject has no message."""


class Sums:
    """The current sums of one stream's counters."""

    def __init__(self, stream: Stream, appender: Appender) -> None:
        self._stream, self._appender = stream, appender
        self._cache: dict[bytes, tuple[int, Decimal]] = {}
        """The offset of each subject's last message, and the sum in it."""
        self._losses = stream.losses

    def cached(self, subjects: Collection[bytes]) -> dict[bytes, Decimal] | None:
        """The current sum of each subject; None if one has to be looked up."""
        if self._losses != self._stream.losses:
            self._losses = self._stream.losses
            self._cache.clear()
        try:
            entries = {subject: self._cache[subject] for subject in subjects}
        except KeyError:
            return None
        offsets = {offset for offset, _ in entries.values() if offset != NOWHERE}
        deleted = offsets - self._stream.counts.alive(offsets)
        if deleted:
            for subject, (offset, _) in entries.items():
                if offset in deleted:
                    del self._cache[subject]
            return None
        return {subject: total for subject, (_, total) in entries.items()}

    async def load(self, subjects: Collection[bytes]) -> set[bytes]:
        """Look up the sums that are not cached; returns the subjects whose last message holds no
        sum.
        """
        await self._appender.settled()
        missing = [subject for subject in subjects if subject not in self._cache]
        lasts = {subject: await self._stream.last(Filter.exactly(subject)) for subject in missing}
        offsets = sorted(offset for offset in lasts.values() if offset is not None)
        rows = await self._stream.read_offsets(offsets)
        payloads = dict(zip(rows.offsets, rows.payloads, strict=True))
        broken: set[bytes] = set()
        for subject, last in lasts.items():
            if last is None:
                self._cache[subject] = (NOWHERE, ZERO)
            elif last in payloads:
                try:
                    self._cache[subject] = (last, value_of(payloads[last]))
                except ApiError:
                    broken.add(subject)
        return broken

    async def get(self, subject: bytes) -> Decimal:
        """The current sum of one subject; raises ApiError if its last message holds none."""
        while (sums := self.cached([subject])) is None:
            if await self.load([subject]):
                raise errors.COUNTER_BROKEN.error()
        return sums[subject]

    def remember(self, first: int, subjects: Sequence[bytes], totals: Sequence[Decimal]) -> None:
        """Record that messages with these sums were appended from offset `first` on."""
        cache = self._cache
        for offset, (subject, total) in enumerate(zip(subjects, totals, strict=True), first):
            cache.pop(subject, None)
            cache[subject] = (offset, total)
        for subject in set(subjects):
            if cache[subject][1].adjusted() >= DIGITS_MAX:
                del cache[subject]
        while len(cache) > SUMS_MAX:
            del cache[next(iter(cache))]
