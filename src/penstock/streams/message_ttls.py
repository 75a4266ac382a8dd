"""Maintains the expiry table of a stream from its messages, and writes checkpoints of it.

A checkpoint records up to which offset the table is complete. A restart reads the checkpoint and
the messages after it. The checkpoint is derived data: if it is lost or damaged, the table is
rebuilt from the stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import structlog
from pyroaring import BitMap64

from penstock.formats import expiry
from penstock.formats.expiry import ExpiryCheckpoint, ExpiryEntries
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.errors import DataDamaged, FormatError
from penstock.model.units import Offset, PartitionId
from penstock.streams.expiry_table import RUN_PREFIX, ExpiryTable, run_name
from penstock.streams.stream import Stream
from penstock.streams.stream_reader import READ_BYTES
from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.times import parse_ttl

FILE_NAME: Final = "expiry"
HEADER: Final = b"Nats-TTL"
CHECKPOINT_BYTES: Final = 16 << 20
"""A checkpoint is written after this many bytes of messages, which bounds what a restart reads."""
SWEEP_ENTRIES_MIN: Final = 1 << 16
"""Entries of deleted messages are removed when they exceed twice the messages by this many."""
CLOSE_READS_MAX: Final = 16
"""Limit of reads with which a closing stream catches up with its last messages."""
DUE_US_MAX: Final = 1 << 62
NANOSECONDS: Final = 1000
"""Nanoseconds per microsecond."""

_events = structlog.get_logger(__name__)


class MessageTtls:
    """The expiry table of one stream, used by a single task."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._files = stream.opened.side_files
        self._durable = stream.opened.durable
        self._table = self._empty_table()
        self._opened = False
        self._position = 0
        """The table covers all messages before this offset."""
        self._restored: int | None = None
        """The first offset that became readable again, perhaps before `_position`."""
        self._unsaved_bytes = 0

    @property
    def next_us(self) -> int | None:
        """When the first message expires; None if none will."""
        return self._table.next_us

    @property
    def full(self) -> bool:
        """Whether reading waits until a checkpoint is written."""
        return self._table.full

    @property
    def entries_in_memory(self) -> int:
        return self._table.in_memory

    # -- the stream

    async def advance(self) -> bool:
        """Read more of the stream, unless memory is full; returns whether there may be more.

        Raises PenstockError, OSError.
        """
        if not self._opened:
            await self._open()
        if self._restored is not None:
            self._position, self._restored = min(self._position, self._restored), None
            self._stream.scan.forget()
        return not self.full and await self._read()

    def note_restored(self, partition: PartitionId, first: Offset) -> None:
        """Record that messages from `first` on became readable."""
        if partition == self._stream.partition.id:
            self._restored = first if self._restored is None else min(self._restored, first)

    async def take_due(self, now_us: int, most: int) -> ExpiryEntries:
        """Remove and return due entries of existing messages, `most` at most.

        Raises PenstockError, OSError. The caller adds those again whose messages it could not
        delete.
        """
        try:
            entries = await self._table.take(now_us, most)
        except FormatError as error:
            await self._rebuild(str(error))
            raise
        return entries.chosen(self._alive(entries.offsets))

    def add(self, entries: ExpiryEntries) -> None:
        self._table.add(entries)

    # -- checkpoints

    async def checkpoint_if_needed(self) -> None:
        """Write a checkpoint if the last one is too old, or memory is full.

        Raises FormatError, OSError.
        """
        table = self._table
        if len(table) > 2 * self._stream.messages + SWEEP_ENTRIES_MIN:
            await self._checked(table.sweep(self._alive))
        elif not (table.full or table.has_unused_files or self._unsaved_bytes >= CHECKPOINT_BYTES):
            return
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write the table to files. Raises FormatError, OSError."""
        if not self._durable or not self._opened:
            return
        table, stream = self._table, self._stream
        await self._checked(table.spill(self._alive))
        self._unsaved_bytes = 0
        body = ExpiryCheckpoint(
            version=expiry.VERSION,
            lineage=stream.opened.lineage,
            next_offset=self._position,
            runs=table.runs(),
        )
        await self._files.write(FILE_NAME, expiry.encode_checkpoint(body))
        await table.remove_unused()

    async def close(self) -> None:
        """Catch up with the stream's last messages, and write the last checkpoint.

        Raises PenstockError, OSError.
        """
        for _ in range(CLOSE_READS_MAX):
            if not await self.advance():
                break
            await self.checkpoint_if_needed()
        await self.checkpoint()

    # -- details

    def _empty_table(self) -> ExpiryTable:
        return ExpiryTable(self._files if self._durable else None)

    async def _open(self) -> None:
        """Load the checkpoint, if there is one that belongs to the log."""
        if self._durable:
            names = set(await self._files.names(RUN_PREFIX))
            try:
                found = self._valid_checkpoint(await self._files.read(FILE_NAME), names)
            except (FormatError, OSError) as error:
                _events.warning("expiry_rebuilt", stream=self._stream.name, reason=str(error))
                found = None
            if found is not None:
                self._table = ExpiryTable(self._files, found.runs)
                self._position = found.next_offset
                names -= {run_name(run.number) for run in found.runs}
            await self._files.remove(names)
        self._opened = True

    def _valid_checkpoint(self, data: bytes | None, names: set[str]) -> ExpiryCheckpoint | None:
        """The checkpoint, if it belongs to this log; None for a new log. Raises FormatError."""
        if data is None:
            if self._stream.messages:
                raise FormatError("there is no expiry checkpoint")
            return None
        found = expiry.decode_checkpoint(data)
        if found.lineage != self._stream.opened.lineage:
            raise FormatError("the expiry checkpoint belongs to another log")
        if found.next_offset > self._stream.next_offset:
            raise FormatError("the expiry checkpoint is newer than the log")
        if missing := {run_name(run.number) for run in found.runs} - names:
            raise FormatError(f"{min(missing)} does not exist")
        return found

    async def _checked(self, work: Awaitable[None]) -> None:
        """Await work on the runs; if one is damaged, start again with an empty table."""
        try:
            await work
        except FormatError as error:
            await self._rebuild(str(error))
            raise

    async def _rebuild(self, reason: str) -> None:
        _events.warning("expiry_rebuilt", stream=self._stream.name, reason=reason)
        self._table, self._position = self._empty_table(), 0
        await self._files.remove([FILE_NAME, *await self._files.names(RUN_PREFIX)])

    async def _read(self) -> bool:
        stream, place = self._stream, Offset(self._position)
        try:
            answer = await stream.scan.read(place, READ_BYTES)
        except DataDamaged as damage:
            stream.log_skipped(damage)
            self._position = max(damage.next, self._position + 1)
            return True
        if isinstance(answer, AtHead):
            self._position = max(self._position, answer.next_offset)
            return False
        if isinstance(answer, Gone):
            self._position = max(answer.earliest, self._position + 1)
            return True
        for batch in answer:
            self._table.add(entries_of(batch))
            self._unsaved_bytes += batch.nbytes
        self._position = answer[-1].next_offset
        return True

    def _alive(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        mask = offsets >= self._stream.partition.start_offset
        deleted = self._stream.partition.deleted
        if deleted is not None:
            gone = BitMap64(offsets) & deleted
            mask &= ~np.isin(offsets, np.fromiter(gone, np.int64, len(gone)))
        return mask


def entries_of(batch: Batch) -> ExpiryEntries:
    """The entries of a batch's messages with a TTL."""
    content = batch.content
    if not isinstance(content, Columns) or content.headers is None:
        return expiry.NO_ENTRIES
    chosen = pc.fill_null(pc.match_substring(content.headers, HEADER.decode()), False)
    indexes = pc.indices_nonzero(chosen)
    if not len(indexes):
        return expiry.NO_ENTRIES
    ttls_us = np.fromiter(_ttls_us(content.headers.take(indexes).to_pylist()), np.int64)
    chosen_indexes = indexes.to_numpy()[ttls_us > 0]
    stamps = batch.timestamp_column().to_numpy()[chosen_indexes]
    dues = np.minimum(stamps + ttls_us[ttls_us > 0], DUE_US_MAX)
    return ExpiryEntries(dues, batch.offsets()[chosen_indexes])


def _ttls_us(blocks: list[bytes]) -> Iterator[int]:
    """The time to live of each message; 0 for none, or one that cannot be parsed."""
    for block in blocks:
        ttl = headers.get(block, HEADER)
        try:
            ttl_ns = parse_ttl(ttl) if ttl else 0
        except ApiError:
            ttl_ns = 0
        yield min(max(ttl_ns, 0) // NANOSECONDS, DUE_US_MAX)
