"""Appends stages to one stream, and looks up what the checks of their messages depend on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from penstock.formats import json_rows
from penstock.log import NotInMemory
from penstock.model.errors import AppendQueueFull, FormatError
from penstock.model.run import ColumnRun, Run
from penstock.model.subjects import Filter, storable_subject
from penstock.model.units import Offset, OffsetRange
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.stage import Replaced, Stage
from penstock.streams.stream import Stream
from penstock.wire.jetstream import errors


class Appender:
    """Appends to one stream; all of its publishes use the same `window`."""

    def __init__(self, stream: Stream, window: DuplicateWindow) -> None:
        self._stream, self._window = stream, window

    @property
    def appended_offset(self) -> Offset:
        """The offset of the next message, after those that are not durable yet."""
        return self._stream.partition.appended_offset

    @property
    def deduplicates(self) -> bool:
        """Whether a message id is stored only once."""
        return self._window.window_us > 0

    async def append(
        self, check: Callable[[], Awaitable[Stage]], *, patient: bool = False
    ) -> asyncio.Future[OffsetRange] | None:
        """Append the stage that `check` returns, as soon as the log has room for it.

        `check` is called again if another append or deletion invalidated its result. Returns the
        future of the append, which is complete when the messages are durable; None if the stage
        has no messages. On return nobody else has appended since.

        Raises what `check` and `OpenPartition.append` raise, and AppendQueueFull where the
        configured policy is to refuse, unless `patient`.
        """
        partition = self._stream.partition
        while True:
            stage = await check()
            if not stage.payloads:
                return None
            run = self.log_run(stage.subjects, stage.blocks, stage.payloads)
            await self._stream.admission.prepare(stage.subjects)
            await partition.make_room(run.count, run.measure(), patient=patient)
            if stage.first not in (None, self.appended_offset) or not stage.is_current():
                continue
            first = self.appended_offset
            try:
                stored = partition.append(run, stage.origin)
            except AppendQueueFull:
                continue
            self._finish(stage, first, stored)
            return stored

    def log_run(
        self,
        subjects: Sequence[bytes],
        blocks: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> Run | ColumnRun:
        """The messages as the log stores them; raises FormatError if a row does not fit a typed
        topic.
        """
        partition, schema = self._stream.partition.id, self._stream.topic.spec.schema
        if schema is not None:
            rows = json_rows.rows(schema, b"[%b]" % b",".join(payloads), None)
            if rows.num_rows != len(payloads):
                raise FormatError("a message must be one JSON object")
            return ColumnRun(rows, partition)
        first = subjects[0]
        same = subjects.count(first) == len(subjects)
        if blocks is not None and not any(blocks):
            blocks = None
        return Run(first if same else subjects, payloads, blocks, partition)

    # -- look-ups

    def last_message_id(self) -> bytes:
        """The id of the last appended message; empty if it has none."""
        return self._window.last_id(self.appended_offset)

    async def settled(self) -> None:
        """Wait until everything appended so far, over any protocol, can be found by subject."""
        stream, end = self._stream, self.appended_offset
        while stream.next_offset < end:
            with stream.arrival() as arrival:
                if stream.next_offset < end <= self.appended_offset:
                    await arrival
                else:
                    break

    async def last_sequence(self, subject: bytes) -> int:
        """The last sequence of a subject or a subject filter; 0 if there is none.

        Raises ApiError if the subject is invalid.
        """
        if not storable_subject(subject):
            raise errors.EXPECTED_SUBJECT_SEQUENCE_MISSING.error()
        last = await self._last(subject)
        if last is not None and not self._stream.counts.alive([last]):
            # It is deleted in the group commit that is under way.
            await self.settled()
            last = await self._last(subject)
        return 0 if last is None else last + 1

    async def stored_as(self, message_id: bytes) -> int | None:
        """The durable sequence that stored this id; None if there is none."""
        while (sequence := self._window.find(message_id)) is not None:
            if self._stream.next_offset >= sequence:
                break
            await self.settled()
        return sequence

    async def replaced(
        self, subject: bytes, rollup: bytes | None, ended_schedule: bytes = b""
    ) -> list[Replaced]:
        """The messages that a message replaces by its roll-up, or because it ends a schedule."""
        found: list[Replaced] = []
        if rollup == b"all":
            found.append((self.appended_offset, [], subject))
        elif rollup is not None:
            chosen = Filter.covering(subject)
            offsets = await self._all_matching(chosen)
            found.append((Offset(0), offsets, subject if chosen.literal else None))
        if ended_schedule:
            offsets = await self._all_matching(Filter.exactly(ended_schedule))
            found.append((Offset(0), offsets, ended_schedule))
        return found

    async def _last(self, subject: bytes) -> Offset | None:
        """The last offset of a subject or a subject filter in the durable part of the stream."""
        literal = b"*" not in subject and b">" not in subject
        if literal and not self._is_pending(subject):
            cached = self._stream.partition.subjects.cached_last(subject)
            if not isinstance(cached, NotInMemory):
                return cached
        chosen = Filter.covering(subject)
        await self._settled_for(chosen)
        return await self._stream.last(chosen)

    async def _all_matching(self, chosen: Filter) -> list[Offset]:
        stream = self._stream
        await self._settled_for(chosen)
        if chosen.literal and stream.partition.subjects.cached_last(chosen.text) is None:
            return []
        return await stream.matching(chosen, 0, 1 << 31)

    async def _settled_for(self, chosen: Filter) -> None:
        """Wait until everything that matches a filter can be found by subject."""
        if not chosen.literal or self._is_pending(chosen.text):
            await self.settled()

    def _is_pending(self, subject: bytes) -> bool:
        """Whether a message of this subject may not be durable yet."""
        if self._stream.next_offset == self.appended_offset:
            return False
        pending = self._stream.enforcer.pending_subjects
        return pending is None or pending.has(subject)

    # -- after the append

    def _finish(self, stage: Stage, first: Offset, stored: asyncio.Future[OffsetRange]) -> None:
        """Remember ids, and delete what the messages replace and those without interest."""
        stage.appended(first)
        if stage.ids:
            sequences = {message_id: first + index + 1 for message_id, index in stage.ids.items()}
            self._remember(sequences, stored)
        for start, offsets, subject in stage.replaced:
            self._stream.enforcer.delete_soon(start, offsets, subject)
        is_interesting = self._stream.interested
        if is_interesting is not None:
            self._drop_unneeded(stage.subjects, first, is_interesting)

    def _remember(
        self, sequences: Mapping[bytes, int], stored: asyncio.Future[OffsetRange]
    ) -> None:
        """Remember each id with its sequence; forget them again if the append fails."""

        def forget_if_failed(future: asyncio.Future[OffsetRange]) -> None:
            if future.cancelled() or future.exception() is not None:
                for message_id in sequences:
                    self._window.forget(message_id)

        self._window.add_all(sequences)
        stored.add_done_callback(forget_if_failed)

    def _drop_unneeded(
        self, subjects: Sequence[bytes], first: Offset, is_interesting: Callable[[bytes], bool]
    ) -> None:
        """Delete messages that were just appended and that no consumer is interested in."""
        unneeded: dict[bytes, list[Offset]] = {
            subject: [] for subject in set(subjects) if not is_interesting(subject)
        }
        for offset, subject in enumerate(subjects if unneeded else (), first):
            if subject in unneeded:
                unneeded[subject].append(Offset(offset))
        for subject, offsets in unneeded.items():
            self._stream.enforcer.delete_soon(Offset(0), offsets, subject)
