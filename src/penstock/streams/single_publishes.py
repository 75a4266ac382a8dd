"""Publishes of messages that need checks and belong to no batch.

Neighbours share a stage, so that conditional and deduplicated publishes cost one append for each
run instead of one for each message. A message that the stream refuses receives its own error and
does not affect the others.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from penstock.model.errors import PenstockError
from penstock.model.units import OffsetRange
from penstock.streams.answers import Answers
from penstock.streams.appender import Appender
from penstock.streams.checks import CheckedStage, MessageChecks
from penstock.wire.parser import Publishes

STAGE_MESSAGES_MAX: Final = 1000
STAGE_BYTES_MAX: Final = 4 << 20
"""Limits of one stage; the sums of counters may be much larger than what was published."""


class _Attempt:
    """A stage, and the answers to the messages that were checked for it."""

    def __init__(self, stage: CheckedStage, start: int) -> None:
        self.stage = stage
        self.stop = start
        """The index in the run after the last checked message."""
        self.replies: list[bytes] = []
        """Reply subjects of the messages in the stage."""
        self.repetitions: list[tuple[bytes, int]] = []
        """Reply subjects of duplicates of these messages, with the sequences of the originals."""
        self.duplicates: list[tuple[bytes, int]] = []
        """Reply subjects of duplicates of durable messages."""
        self.refusals: list[tuple[bytes, PenstockError]] = []

    def note(self, reply: bytes, original: int | None) -> None:
        """Record that a message is in the stage, or has the id of the message `original`."""
        if original is None:
            self.replies.append(reply)
        elif original > self.stage.first:
            self.repetitions.append((reply, original))
        else:
            self.duplicates.append((reply, original))


class SinglePublishes:
    """Stores messages of one stream that are checked each by itself."""

    def __init__(self, checks: MessageChecks, appender: Appender, answers: Answers) -> None:
        self._checks, self._appender, self._answers = checks, appender, answers

    async def publish(self, run: Publishes) -> None:
        """Check and append messages in order; they are answered when they are durable."""
        start = 0
        while start < len(run.payloads):
            start = await self._store(run, start, STAGE_MESSAGES_MAX)

    async def _store(self, run: Publishes, start: int, messages_max: int) -> int:
        """Append the messages from `start` on that share a stage; returns the index after them."""
        attempt = self._begin(start)

        async def check() -> CheckedStage:
            nonlocal attempt
            attempt = self._begin(start)
            await self._check(attempt, run, start + messages_max)
            return attempt.stage

        try:
            stored = await self._appender.append(check)
        except PenstockError as error:
            if attempt.stop > start + 1:
                # The error may concern a single message, which alone is to be refused.
                for index in range(start, attempt.stop):
                    await self._store(run, index, 1)
            else:
                self._answer_at_once(attempt)
                self._refuse(attempt, error)
            return attempt.stop
        self._answer_at_once(attempt)
        if stored is not None:
            confirm = partial(self._confirm, attempt)
            self._answers.when_durable(stored, confirm, partial(self._refuse, attempt))
        return attempt.stop

    def _begin(self, start: int) -> _Attempt:
        return _Attempt(self._checks.begin(), start)

    # -- checks

    async def _check(self, attempt: _Attempt, run: Publishes, stop: int) -> None:
        """Check messages up to the index `stop`, as far as they can share a stage."""
        checks, stage, stop = self._checks, attempt.stage, min(stop, len(run.payloads))
        # Without the sums, each message meets the error when it needs its own.
        with suppress(PenstockError):
            await checks.load_sums(set(run.subjects[attempt.stop : stop]))
        rows = zip(
            run.subjects[attempt.stop : stop],
            run.replies[attempt.stop : stop],
            (run.headers or [b""] * stop)[attempt.stop : stop],
            run.payloads[attempt.stop : stop],
            strict=True,
        )
        for subject, reply, block, payload in rows:
            try:
                message = checks.parse(subject, block, payload)
                if not checks.may_follow(stage, message):
                    return
                original = await checks.add_single(stage, message)
            except PenstockError as error:
                attempt.refusals.append((reply, error))
            else:
                attempt.note(reply, original)
            attempt.stop += 1
            if stage.outdated or stage.size_bytes > STAGE_BYTES_MAX:
                return

    # -- answers

    def _answer_at_once(self, attempt: _Attempt) -> None:
        """Answer the messages that are not appended."""
        for reply, error in attempt.refusals:
            self._answers.refuse([reply], error)
        for reply, sequence in attempt.duplicates:
            self._answers.duplicate(reply, sequence)

    def _confirm(self, attempt: _Attempt, offsets: OffsetRange) -> None:
        """Confirm the messages of a durable stage."""
        if attempt.stage.totals:
            self._answers.counted(attempt.replies, offsets.first, attempt.stage.totals)
        else:
            self._answers.stored(attempt.replies, offsets.first)
        for reply, sequence in attempt.repetitions:
            self._answers.duplicate(reply, sequence)

    def _refuse(self, attempt: _Attempt, error: PenstockError) -> None:
        """Refuse the messages of a stage that was not stored."""
        repeated = [reply for reply, _ in attempt.repetitions]
        self._answers.refuse([*attempt.replies, *repeated], error)
