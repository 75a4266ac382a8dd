"""The duplicate window: a message id that is published twice within it is stored once.

After a restart the window is restored from the WAL, where frames of deleted messages count too.
Before the log drops WAL files, the ids in them that are still within the window are written to a
side file.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow.compute as pc
import structlog

from penstock.formats import message_ids
from penstock.formats.message_ids import MessageId
from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import PenstockError
from penstock.model.resources import Durability
from penstock.streams.stream import Stream
from penstock.streams.stream_reader import READ_BYTES
from penstock.wire import headers

IDS_MAX: Final = 1_000_000
"""Limit of remembered ids; beyond it the oldest are forgotten before their time."""


class DuplicateWindow:
    """The ids of one stream, oldest first."""

    def __init__(self, window_us: int, now_us: Callable[[], int]) -> None:
        self.window_us, self._now_us = window_us, now_us
        self._sequences: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()
        self._last = (0, b"")

    def last_id(self, sequence: int) -> bytes:
        """The id of the last message; empty if it has none."""
        return self._last[1] if self._last[0] == sequence else b""

    def find(self, message_id: bytes) -> int | None:
        """The sequence that stored this id within the window."""
        self._expire()
        return self._sequences.get(message_id)

    def add(self, message_id: bytes, sequence: int, at_us: int | None = None) -> None:
        """Remember an id, received at `at_us` or now."""
        self._last = (sequence, message_id)
        if self.window_us:
            self._sequences[message_id] = sequence
            self._order.append((self._now_us() if at_us is None else at_us, message_id))
            self._expire()

    def add_all(self, sequences: Mapping[bytes, int]) -> None:
        """Remember ids that are received now, with their sequences."""
        now_us = self._now_us()
        for message_id, sequence in sequences.items():
            self.add(message_id, sequence, now_us)

    def entries(self) -> Iterator[MessageId]:
        """The ids that are within the window now, in the order they were added."""
        self._expire()
        for stored_us, message_id in list(self._order):
            if (sequence := self._sequences.get(message_id)) is not None:
                yield MessageId(message_id, sequence, stored_us)

    def forget(self, message_id: bytes) -> None:
        """Remove an id whose message was not stored."""
        self._sequences.pop(message_id, None)

    def _expire(self) -> None:
        oldest = self._now_us() - self.window_us
        order = self._order
        while order and (order[0][0] < oldest or len(order) > IDS_MAX):
            _, message_id = order.popleft()
            self._sequences.pop(message_id, None)


FILE_NAME: Final = "message-ids"
HEADER: Final = "Nats-Msg-Id"
READ_AT_ONCE: Final = 10_000
SLICE: Final = 10_000
"""Ids that are encoded before the event loop gets another turn."""

_events = structlog.get_logger(__name__)


class MessageIds:
    """Restores the duplicate window of one stream, and saves ids before the log drops WAL files."""

    def __init__(self, stream: Stream, window: DuplicateWindow, clock: Clock) -> None:
        self._stream, self._window, self._clock = stream, window, clock
        self._tasks = Tasks()
        self._restoring: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None] | None:
        """Start to restore the window; None if there is nothing to restore."""
        log = self._stream.opened.log
        if log.durability is not Durability.MEMORY:
            log.files.before_drop(self.save)
        if self._stream.next_offset:
            self._restoring = self._tasks.start(self._restore())
        return self._restoring

    async def save(self, starts: Mapping[int, int]) -> None:
        """Write the ids of messages before `starts`, whose WAL files are about to be dropped.

        Raises OSError.
        """
        if self._restoring is not None:
            await asyncio.wait([self._restoring])
        stop = min(starts.get(self._stream.partition.id, 0), self._stream.next_offset)
        ids: list[MessageId] = []
        for entry in self._window.entries():
            if entry.sequence > stop:
                break
            ids.append(entry)
            if len(ids) % SLICE == 0:
                await asyncio.sleep(0)
        if ids:
            await self._stream.opened.side_files.write(FILE_NAME, message_ids.encode(ids))

    async def _restore(self) -> None:
        try:
            await self._read()
        except (PenstockError, OSError) as error:
            _events.error("message_ids_unknown", stream=self._stream.name, reason=str(error))

    async def _read(self) -> None:
        if not self._window.window_us:
            return
        since_us = self._clock.now_us() - self._window.window_us
        if self._stream.opened.durable:
            data = await self._stream.opened.side_files.read(FILE_NAME)
            if data is None:
                await self._read_objects(since_us)
            else:
                self._add(message_ids.decode(data))
            await self._read_files(since_us)

    async def _read_objects(self, since_us: int) -> None:
        """Read ids from objects: after a takeover, or in data of older versions."""
        stream = self._stream
        offset, stop = await stream.offset_at(since_us), stream.partition.wal_start
        if offset >= stop:
            return
        async for rows in stream.rows_from(offset, READ_AT_ONCE):
            for index, block in enumerate(rows.headers or ()):
                if message_id := _id_of(block):
                    found = MessageId(message_id, rows.seqs[index], rows.timestamps[index])
                    self._add(iter([found]))
            if rows.seqs[-1] >= stop:
                break

    async def _read_files(self, since_us: int) -> None:
        """Read ids of all messages in WAL files, deleted ones included."""
        async for batches in self._stream.partition.stored_since(since_us, READ_BYTES):
            for batch in batches:
                self._add(_ids_of(batch))

    def _add(self, ids: Iterator[MessageId]) -> None:
        for entry in ids:
            is_stored = entry.sequence <= self._stream.next_offset
            if is_stored and self._window.find(entry.message_id) != entry.sequence:
                self._window.add(*entry)


def _ids_of(batch: Batch) -> Iterator[MessageId]:
    content = batch.content
    if not isinstance(content, Columns) or content.headers is None:
        return
    chosen = pc.fill_null(pc.match_substring(content.headers, HEADER), False)
    indexes = pc.indices_nonzero(chosen)
    blocks, offsets = content.headers.take(indexes).to_pylist(), batch.offsets()
    stamps = batch.timestamp_column().take(indexes).to_pylist()
    for index, block, stored_us in zip(indexes.to_pylist(), blocks, stamps, strict=True):
        if message_id := _id_of(block):
            yield MessageId(message_id, int(offsets[index]) + 1, stored_us)


def _id_of(block: bytes) -> bytes | None:
    return headers.get(block, HEADER.encode()) if HEADER.encode() in block else None
