"""Counter streams: each message stores the sum of its increment and the previous sum of its
subject.

Recent sums are cached with the offset that stores them, and are valid while that message exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import Final

from penstock.model.errors import AppendQueueFull, PenstockError
from penstock.model.run import Origin
from penstock.model.subjects import Filter
from penstock.model.units import OffsetRange
from penstock.streams.answers import Answers
from penstock.streams.storing import Storing
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.counter_values import (
    FIELD,
    PAYLOAD,
    ZERO,
    add_up,
    increment_of,
    value_of,
)
from penstock.wire.parser import Publishes

SUMS_MAX: Final = 10_000
"""Number of subjects whose sums are cached."""
DIGITS_MAX: Final = 100
"""Longer sums are looked up instead of cached."""
NOWHERE: Final = -1
"""Replaces the offset where a subject has no message."""


class Sums:
    """The current sums of one stream's counters."""

    def __init__(self, stream: Stream, storing: Storing) -> None:
        self._stream, self._storing = stream, storing
        self._known: dict[bytes, tuple[int, Decimal]] = {}
        self._losses = stream.losses

    def known(self, subjects: Collection[bytes]) -> dict[bytes, Decimal] | None:
        """The current sum of each subject; None if one has to be looked up."""
        if self._losses != self._stream.losses:
            self._losses = self._stream.losses
            self._known.clear()
        try:
            found = {subject: self._known[subject] for subject in subjects}
        except KeyError:
            return None
        offsets = {offset for offset, _ in found.values() if offset != NOWHERE}
        gone = offsets - self._stream.keeper.alive(offsets)
        if gone:
            for subject in [one for one, (offset, _) in found.items() if offset in gone]:
                del self._known[subject]
            return None
        return {subject: total for subject, (_, total) in found.items()}

    async def learn(self, subjects: Iterable[bytes]) -> None:
        """Look up the sums that are not cached; raises ApiError if a message holds no sum."""
        await self._storing.settled()
        missing = [subject for subject in subjects if subject not in self._known]
        lasts = {subject: await self._stream.last(Filter.exactly(subject)) for subject in missing}
        wanted = sorted(last for last in lasts.values() if last is not None)
        rows = await self._stream.read_offsets(wanted)
        texts = dict(zip(rows.offsets, rows.payloads, strict=True))
        for subject, last in lasts.items():
            if last is None:
                self._known[subject] = (NOWHERE, ZERO)
            elif last in texts:
                self._known[subject] = (last, value_of(texts[last]))

    async def get(self, subject: bytes) -> Decimal:
        """The current sum of one subject."""
        while (known := self.known([subject])) is None:
            await self.learn([subject])
        return known[subject]

    def note(self, first: int, subjects: Sequence[bytes], totals: Sequence[Decimal]) -> None:
        """Record that messages with these sums were appended."""
        for offset, (subject, total) in enumerate(zip(subjects, totals, strict=True), first):
            self._known.pop(subject, None)
            self._known[subject] = (offset, total)
        for subject in set(subjects):
            if self._known[subject][1].adjusted() >= DIGITS_MAX:
                del self._known[subject]
        while len(self._known) > SUMS_MAX:
            del self._known[next(iter(self._known))]


class CounterPublishes:
    """Processes publishes to a counter stream that request nothing but an increment."""

    def __init__(self, stream: Stream, sums: Sums, storing: Storing, answers: Answers) -> None:
        self._stream, self._sums, self._storing = stream, sums, storing
        self._answers = answers

    @staticmethod
    def simple(block: bytes) -> bool:
        """Whether a header block requests nothing but an increment."""
        return block.count(b"Nats-") == 1 and headers.get(block, FIELD) is not None

    async def take(self, run: Publishes) -> None:
        """Process increments; an invalid one is refused without effect on the others."""
        places: list[int] = []
        numbers: list[Decimal] = []
        for place, block in enumerate(run.headers or ()):
            try:
                numbers.append(self._number(block, run.payloads[place]))
                places.append(place)
            except PenstockError as error:
                self._answers.refuse([run.replies[place]], error)
        limits = self._stream.keeper.limits
        together = limits.messages is None and limits.bytes is None
        step = max(len(places), 1) if together and self._stream.config.max_msg_size < 0 else 1
        for start in range(0, len(places), step):
            some = places[start : start + step]
            try:
                await self.add(_picked(run, some), numbers[start : start + step])
            except PenstockError as error:
                self._answers.refuse([run.replies[place] for place in some], error)

    async def add(
        self, run: Publishes, numbers: Sequence[Decimal]
    ) -> tuple[int, asyncio.Future[OffsetRange]]:
        """Store the new sums, and answer when they are durable.

        Returns the first offset. Raises what `OpenPartition.append` raises.
        """
        subjects = set(run.subjects)
        await self._stream.admission.prepare(subjects)
        while True:
            await self._storing.make_room(len(numbers), self._storing.log_run(run).measure())
            sums = self._sums.known(subjects)
            if sums is None:
                await self._sums.learn(subjects)
                continue
            totals = [add_up(sums, *pair) for pair in zip(run.subjects, numbers, strict=True)]
            texts = [str(total).encode() for total in totals]
            counted = run._replace(payloads=[PAYLOAD % text for text in texts])
            first = self._storing.taken
            try:
                run_of_sums = self._storing.log_run(counted)
                stored = self._stream.partition.append(run_of_sums, Origin.COUNTER)
            except AppendQueueFull:
                continue
            self._sums.note(first, run.subjects, totals)
            stored.add_done_callback(partial(self._stored, run.replies, texts))
            return first, stored

    def _number(self, block: bytes, payload: bytes) -> Decimal:
        text = headers.get(block, FIELD)
        if not text:
            raise errors.INCREMENT_MISSING.error()
        number = increment_of(text)
        if payload:
            raise errors.INCREMENT_WITH_PAYLOAD.error()
        self._stream.admission.check_size(len(block), 0)
        return number

    def _stored(
        self, replies: list[bytes], texts: list[bytes], future: asyncio.Future[OffsetRange]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            ack, name = b'{"stream":%b,"seq":%d,"val":"%b"}', self._answers.name
            pairs = enumerate(texts, future.result().first + 1)
            self._answers.tell(replies, [ack % (name, seq, text) for seq, text in pairs])
        elif isinstance(error, PenstockError):
            self._answers.refuse(replies, error)


def _picked(run: Publishes, places: Sequence[int]) -> Publishes:
    if len(places) == len(run.payloads):
        return run
    return Publishes(
        [run.subjects[place] for place in places],
        [run.replies[place] for place in places],
        None if run.headers is None else [run.headers[place] for place in places],
        [run.payloads[place] for place in places],
    )
