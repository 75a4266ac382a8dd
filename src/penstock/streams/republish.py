"""Publishes the messages that a stream stores again, under other subjects, to current
subscribers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from penstock.host.tasks import Tasks
from penstock.model.errors import PenstockError
from penstock.model.subjects import SubjectMapping
from penstock.streams.rows import Rows
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream.stream_config import RePublish
from penstock.wire.jetstream.times import stamps

AT_ONCE: Final = 10_000
LAST_MAX: Final = 100_000
"""Limit of subjects whose last sequence is remembered, to be sent with the next message."""

Send = Callable[[bytes, bytes, bytes, bytes], object]
"""Takes subject, reply, headers and payload."""

_events = structlog.get_logger(__name__)


class Republisher:
    """Republishes the messages of one stream that are stored from now on."""

    def __init__(self, stream: Stream, config: RePublish, send: Send) -> None:
        self._stream, self._send = stream, send
        self._mapping = SubjectMapping.parse(config.src.encode(), config.dest.encode())
        self._headers_only = config.headers_only
        self._next: int = stream.next_offset
        self._last: dict[bytes, int] = {}
        self._tasks = Tasks()
        self._working: asyncio.Task[None] | None = None
        self._stop_observing = stream.changed.add(self._republish)

    def stop(self) -> None:
        self._stop_observing()
        if self._working is not None:
            self._working.cancel()

    def _republish(self) -> None:
        """Republish the messages in memory at once; a task reads the others."""
        if self._working is not None:
            return
        while isinstance(rows := self._stream.peek(self._next, AT_ONCE), Rows) and rows.count:
            self._publish(rows)
        if rows is None:
            self._working = self._tasks.start(self._catch_up())

    async def _catch_up(self) -> None:
        try:
            while isinstance(rows := await self._stream.read(self._next, AT_ONCE), Rows):
                self._publish(rows)
        except PenstockError as error:
            _events.warning("republish_failed", stream=self._stream.name, reason=str(error))
        finally:
            self._working = None

    def _publish(self, rows: Rows) -> None:
        name, blocks = self._stream.name.encode(), rows.headers or [b""] * rows.count
        for place, stamp in enumerate(stamps(rows.timestamps)):
            subject, sequence = rows.subjects[place], rows.offsets[place] + 1
            to = self._mapping.map(subject)
            if to is None:
                continue
            payload = rows.payloads[place]
            fields = [
                (b"Nats-Stream", name),
                (b"Nats-Subject", subject),
                (b"Nats-Sequence", b"%d" % sequence),
                (b"Nats-Time-Stamp", stamp),
                (b"Nats-Last-Sequence", b"%d" % self._last.get(subject, 0)),
            ]
            if self._headers_only:
                fields.append((b"Nats-Msg-Size", b"%d" % len(payload)))
                payload = b""
            self._send(to, b"", headers.with_fields(blocks[place], fields), payload)
            self._remember(subject, sequence)
        self._next = rows.offsets[-1] + 1

    def _remember(self, subject: bytes, sequence: int) -> None:
        if len(self._last) >= LAST_MAX:
            self._last.clear()
        self._last[subject] = sequence
