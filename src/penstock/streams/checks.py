"""Checks messages one after another, each against the stream and the messages before it.

Single messages and those of batches are checked for the same conditions in different orders, as in
nats-server: the order decides which of several errors a publisher receives.
"""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import Final, NamedTuple

from penstock.model.run import Origin
from penstock.model.units import Offset
from penstock.streams import schedule_rules
from penstock.streams.appender import Appender
from penstock.streams.counters import Sums
from penstock.streams.publish_fields import (
    NO_FIELDS,
    RESERVED_PREFIX,
    PublishFields,
    publish_fields,
)
from penstock.streams.schedule_rules import as_stored, ended_by
from penstock.streams.stage import Replaced, Stage
from penstock.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.counter_values import PAYLOAD, add_up
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import StreamConfig

BATCH_PREFIX: Final = b"Nats-Batch-"


class PublishedMessage(NamedTuple):
    """A message that is valid by itself; whether it may follow the others is not checked yet."""

    subject: bytes
    block: bytes
    payload: bytes
    fields: PublishFields
    increment: Decimal | None


class CheckedStage(Stage):
    """Messages that passed their checks at the end of the stream."""

    first: Offset
    subjects: list[bytes]
    blocks: list[bytes]
    payloads: list[bytes]

    def __init__(self, first: Offset, sums: Sums) -> None:
        super().__init__(first, [], [], [])
        self._sums_of_stream = sums
        self.outdated = False
        """Whether there was another append during a look-up; then the checks must be repeated."""
        self.deletes_others = False
        """Whether an append may delete the last message of another subject."""
        self.size_bytes = 0
        self.last_indexes: dict[bytes, int] = {}
        """The index of the last message of each subject of this stage."""
        self.last_sequences: dict[bytes, int] = {}
        """Last sequences of subjects in the stream, as they were looked up."""
        self.last_message_id = b""
        """The id of the last message of this stage, empty if it has none."""
        self.sums_before: dict[bytes, Decimal] = {}
        self.sums: dict[bytes, Decimal] = {}
        """The sum of each counter before and after this stage."""
        self.totals: list[Decimal] = []
        """The sum in each message of a stream of counters."""

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.first + len(self.payloads)

    @property
    def origin(self) -> Origin:
        return Origin.COUNTER if self.totals else Origin.CLIENT

    def is_current(self) -> bool:
        """Whether no counter was changed by a deletion."""
        before = self.sums_before
        return not before or self._sums_of_stream.cached(before) == before

    def add(self, message: PublishedMessage, payload: bytes, replaced: list[Replaced]) -> None:
        """Add a message that is stored with this payload and replaces these messages."""
        self.last_indexes[message.subject] = len(self.payloads)
        self.last_message_id = message.fields.message_id
        if self.last_message_id:
            self.ids.pop(self.last_message_id, None)
            self.ids[self.last_message_id] = len(self.payloads)
        self.subjects.append(message.subject)
        self.blocks.append(message.block)
        self.payloads.append(payload)
        self.replaced += replaced
        self.size_bytes += len(message.block) + len(payload)

    def appended(self, first: Offset) -> None:
        """Remember the new sums of counters."""
        if self.totals:
            self._sums_of_stream.remember(first, self.subjects, self.totals)


class MessageChecks:
    """Checks the messages of one stream and adds them to stages."""

    def __init__(self, stream: Stream, appender: Appender) -> None:
        self._stream, self._appender = stream, appender
        self.sums = Sums(stream, appender)
        self._last_increment: tuple[bytes, StreamConfig, PublishedMessage] | None = None
        """Header block, configuration and result of the last parsed increment."""

    def begin(self) -> CheckedStage:
        """An empty stage at the end of the stream."""
        stage = CheckedStage(self._appender.appended_offset, self.sums)
        deletes_oldest = self._stream.enforcer.limits.deletes_oldest
        stage.deletes_others = deletes_oldest or self._stream.interested is not None
        return stage

    def parse(self, subject: bytes, block: bytes, payload: bytes) -> PublishedMessage:
        """Check a message by itself; raises ApiError, or FormatError if it does not fit a typed
        topic.
        """
        stream, config = self._stream, self._stream.config
        last = self._last_increment
        if last is not None and block == last[0] and config is last[1] and not payload:
            # Most increments have equal headers, so that they need not be parsed again.
            return PublishedMessage(subject, *last[2][1:])
        stream.admission.check_open()
        received_block, fields = block, NO_FIELDS
        if block.count(RESERVED_PREFIX) > block.count(BATCH_PREFIX):
            block = as_stored(block, config)
            fields = publish_fields(block)
        stream.admission.check_size(len(block), len(payload))
        increment = None
        if fields is not NO_FIELDS:
            increment = fields.check_increment(config, payload)
            fields.check_allowed(config)
        if stream.topic.spec.schema is not None:
            self._appender.log_run([subject], None, [payload]).measure()
        message = PublishedMessage(subject, block, payload, fields, increment)
        if increment is not None:
            self._last_increment = received_block, config, message
        return message

    # -- single messages

    async def load_sums(self, subjects: Collection[bytes]) -> None:
        """Look up the sums of counters together, before they are needed one by one."""
        if self._stream.config.allow_msg_counter and self.sums.cached(subjects) is None:
            await self.sums.load(subjects)

    def may_follow(self, stage: CheckedStage, message: PublishedMessage) -> bool:
        """Whether a message can be checked before the messages of the stage are appended."""
        if not stage.payloads:
            return True
        fields = message.fields
        if stage.replaced or fields.rollup is not None or fields.schedule_block:
            return False
        counts = self._stream.config.allow_msg_counter
        if not counts and fields.last_subject_sequence is None:
            return True
        return not stage.deletes_others and not _has_wildcard(fields.subject or message.subject)

    async def add_single(self, stage: CheckedStage, message: PublishedMessage) -> int | None:
        """Check and add a message that belongs to no batch.

        Returns None, or the sequence of the message that already has its id, perhaps one of this
        stage. Raises ApiError if the stream refuses the message.
        """
        fields, replaced = message.fields, list[Replaced]()
        if fields is not NO_FIELDS:
            if fields.last_subject_sequence is not None:
                await self._check_last_of_subject(stage, message)
            self._check_last(stage, fields)
            if fields.schedule_block:
                await self._check_schedule(message)
            if fields.message_id and self._appender.deduplicates:
                sequence = await self._sequence_of(stage, fields.message_id)
                if sequence is not None:
                    return sequence
            self._check_last_id(stage, fields)
            fields.check_rollup(self._stream.config)
            replaced = await self._replaced(message)
        payload = message.payload
        if self._stream.config.allow_msg_counter:
            if message.increment is None or message.subject not in stage.sums:
                await self._load_sum(stage, message)
            payload = self._counted(stage, message)
        stage.add(message, payload, replaced)
        return None

    # -- messages of batches

    async def add_batched(self, stage: CheckedStage, message: PublishedMessage) -> None:
        """Check and add a message of a batch; raises ApiError if the stream refuses it."""
        fields, replaced = message.fields, list[Replaced]()
        if fields.message_id and await self._sequence_of(stage, fields.message_id) is not None:
            raise errors.BATCH_DUPLICATE.error()
        payload = message.payload
        if self._stream.config.allow_msg_counter:
            await self._load_sum(stage, message)
            payload = self._counted(stage, message)
        if fields is not NO_FIELDS:
            self._check_last(stage, fields)
            if stage.payloads:
                self._check_independent(stage, message)
            if fields.last_subject_sequence is not None:
                await self._check_last_of_subject(stage, message)
            fields.check_rollup(self._stream.config)
            if fields.schedule_block:
                await self._check_schedule(message)
            self._check_replaces_none_of(stage, message)
            replaced = await self._replaced(message)
            self._check_last_id(stage, fields)
        stage.add(message, payload, replaced)

    def _check_independent(self, stage: CheckedStage, message: PublishedMessage) -> None:
        """Raise ApiError if a message expects a sequence that its own batch determines."""
        fields = message.fields
        subject = fields.subject or message.subject
        expects = fields.last_subject_sequence is not None and subject in stage.last_indexes
        if fields.last_sequence is not None or expects:
            raise errors.WRONG_SEQUENCE_IN_BATCH.error()

    def _check_replaces_none_of(self, stage: CheckedStage, message: PublishedMessage) -> None:
        """Raise ApiError if a message would replace messages of its own batch."""
        fields = message.fields
        if fields.schedule_block and ended_by(fields.schedule_block) in stage.last_indexes:
            raise errors.SCHEDULER_INVALID.error()
        if fields.rollup == b"sub" and message.subject in stage.last_indexes:
            raise errors.ROLLUP_FAILED.error("batch rollup sub invalid")
        if fields.rollup == b"all" and stage.payloads:
            raise errors.ROLLUP_FAILED.error("batch rollup all invalid")

    # -- single conditions

    async def _sequence_of(self, stage: CheckedStage, message_id: bytes) -> int | None:
        """The sequence that has an id, in the stage or in the stream."""
        index = stage.ids.get(message_id)
        if index is not None:
            return stage.first + index + 1
        sequence = await self._appender.stored_as(message_id)
        if sequence is not None:
            stage.outdated = self._appender.appended_offset != stage.first
        return sequence

    def _check_last(self, stage: CheckedStage, fields: PublishFields) -> None:
        if fields.last_sequence not in (None, stage.end):
            raise errors.WRONG_LAST_SEQUENCE.error(stage.end)

    async def _check_last_of_subject(self, stage: CheckedStage, message: PublishedMessage) -> None:
        subject = message.fields.subject or message.subject
        index, known = stage.last_indexes.get(subject), stage.last_sequences
        if index is not None:
            sequence = stage.first + index + 1
        elif subject in known:
            sequence = known[subject]
        else:
            sequence = known[subject] = await self._appender.last_sequence(subject)
            stage.outdated = self._appender.appended_offset != stage.first
        if sequence != message.fields.last_subject_sequence:
            raise errors.WRONG_LAST_SEQUENCE.error(sequence)

    def _check_last_id(self, stage: CheckedStage, fields: PublishFields) -> None:
        if fields.last_message_id is None:
            return
        last_id = self._appender.last_message_id()
        if stage.payloads:
            last_id = stage.last_message_id
        if fields.last_message_id != last_id:
            raise errors.WRONG_LAST_MESSAGE_ID.error(last_id.decode(errors="replace"))

    def _counted(self, stage: CheckedStage, message: PublishedMessage) -> bytes:
        """The payload of a counter's message: the sum, to which the increment is added."""
        assert message.increment is not None
        subject = message.subject
        before = stage.sums[subject]
        total = add_up(stage.sums, subject, message.increment)
        payload = PAYLOAD % str(total).encode()
        try:
            self._stream.admission.check_size(len(message.block), len(payload))
        except ApiError:
            stage.sums[subject] = before
            raise
        stage.totals.append(total)
        return payload

    async def _load_sum(self, stage: CheckedStage, message: PublishedMessage) -> None:
        """Look up the sum that a message's increment is added to."""
        if message.increment is None:
            raise errors.INCREMENT_MISSING.error()
        subject = message.subject
        if subject not in stage.sums:
            stage.sums[subject] = stage.sums_before[subject] = await self.sums.get(subject)

    async def _check_schedule(self, message: PublishedMessage) -> None:
        block = message.fields.schedule_block
        await schedule_rules.check(self._stream, self._appender, message.subject, block)

    async def _replaced(self, message: PublishedMessage) -> list[Replaced]:
        """The messages of the stream that a message replaces."""
        fields = message.fields
        if fields.rollup is None and not fields.schedule_block:
            return []
        ended = ended_by(fields.schedule_block)
        return await self._appender.replaced(message.subject, fields.rollup, ended)


def _has_wildcard(subject: bytes) -> bool:
    return b"*" in subject or b">" in subject
