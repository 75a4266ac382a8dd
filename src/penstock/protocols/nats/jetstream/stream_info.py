"""The STREAM.INFO document of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from msgspec import UNSET, UnsetType

from penstock.host.clock import Clock
from penstock.model.subjects import Filter
from penstock.model.times import time_text_us
from penstock.protocols.nats.jetstream.message_api import subject_filter
from penstock.streams import Mirror, Rows, SourceCopy, Stream, Streams
from penstock.wire.jetstream.documents import (
    SUBJECTS_LIMIT,
    SourceInfo,
    StreamInfo,
    StreamState,
)
from penstock.wire.jetstream.errors import STREAM_NOT_FOUND
from penstock.wire.jetstream.times import ZERO_TIME

EVERYTHING: Final = Filter.parse(b">")


class StreamInfoLimits(NamedTuple):
    """Limits of the work for one document."""

    measure_seconds: float = 1.0
    """How long a reply waits until the bytes of messages from before the start are counted."""
    counted_subjects_max: int = 200_000
    """The number of subjects of a stream with more of them is not reported."""
    page_subjects: int = 10_000
    """The number of subjects that are read together."""
    shown_subjects_max: int = SUBJECTS_LIMIT


class StreamDescriber:
    """Builds the info documents of streams."""

    def __init__(
        self,
        streams: Streams,
        clock: Clock,
        count_consumers: Callable[[Stream], int],
        limits: StreamInfoLimits | None = None,
    ) -> None:
        """`count_consumers` returns the number of consumers of a stream."""
        self._limits = limits or StreamInfoLimits()
        self._streams, self._clock, self.count_consumers = streams, clock, count_consumers
        self._first_times: WeakKeyDictionary[Stream, tuple[int, str]] = WeakKeyDictionary()

    async def info(
        self, stream: Stream, config: dict[str, Any], *, deleted: bool = False
    ) -> StreamInfo:
        """The document without subjects; with `deleted` it lists single deleted sequences."""
        state = await self._state(stream)
        state.num_deleted = stream.deleted_count or UNSET
        state.deleted = (stream.deleted() if deleted else None) or UNSET
        return StreamInfo(
            config,
            time_text_us(stream.created_us),
            state,
            mirror=self._mirror(stream),
            sources=self._sources(stream),
            ts=time_text_us(self._clock.now_us()),
        )

    async def subjects(
        self, stream: Stream, chosen: str, offset: int
    ) -> tuple[int, dict[str, int]]:
        """The number of matching subjects, and a page of them with the messages of each."""
        subjects = subject_filter(chosen)
        if subjects is None:
            return 0, {}
        total, after, page = 0, b"", dict[str, int]()
        page_subjects = self._limits.page_subjects
        while rows := await stream.subjects(subjects, after, page_subjects):
            for subject, count, _ in rows[max(offset - total, 0) :]:
                if len(page) == self._limits.shown_subjects_max:
                    break
                page[subject.decode("utf-8", "replace")] = count
            total, after = total + len(rows), rows[-1][0]
            if len(rows) < page_subjects:
                break
        return total, page

    async def _state(self, stream: Stream) -> StreamState:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.measure_seconds):
                await stream.measured()
        number = await self._subject_count(stream)
        first = await self._first_time(stream)
        written = stream.last_seq >= max(stream.config.first_seq, 1)
        return StreamState(
            stream.messages,
            stream.size_bytes,
            stream.first_seq,
            first,
            stream.last_seq,
            time_text_us(stream.opened.last_timestamp) if written else ZERO_TIME,
            number,
            consumer_count=self.count_consumers(stream),
        )

    async def _subject_count(self, stream: Stream) -> int | UnsetType:
        count, after, page_subjects = 0, b"", self._limits.page_subjects
        while count < self._limits.counted_subjects_max:
            rows = await stream.subjects(EVERYTHING, after, page_subjects)
            count += len(rows)
            if len(rows) < page_subjects:
                return count or UNSET
            after = rows[-1][0]
        return UNSET

    async def _first_time(self, stream: Stream) -> str:
        """The time of the first live message, which is read once and cached."""
        if not stream.messages:
            return ZERO_TIME
        offset = stream.first_offset
        cached = self._first_times.get(stream)
        if cached is None or cached[0] != offset:
            rows = stream.peek(offset, 1) or await stream.read(offset, 1)
            if not isinstance(rows, Rows):
                return ZERO_TIME
            cached = self._first_times[stream] = (offset, time_text_us(rows.timestamps[0]))
        return cached[1]

    def _mirror(self, stream: Stream) -> SourceInfo | UnsetType:
        mirror = self._streams.mirror(stream.name)
        return UNSET if mirror is None else _copy_info(mirror)

    def _sources(self, stream: Stream) -> list[SourceInfo] | UnsetType:
        copies = self._streams.sources(stream.name)
        if not copies:
            return UNSET
        infos = [_copy_info(copy) for copy in copies]
        for info, copy in zip(infos, copies, strict=True):
            info.seq = copy.last_seq or UNSET
            info.subject_transforms = copy.source.subject_transforms or UNSET
        return infos


def _copy_info(copy: Mirror | SourceCopy) -> SourceInfo:
    lost = copy.origin is None
    return SourceInfo(
        name=copy.source.name,
        lag=copy.lag,
        active=copy.active_ns,
        error=STREAM_NOT_FOUND.error().document() if lost else UNSET,
        filter_subject=copy.source.filter_subject or UNSET,
    )
