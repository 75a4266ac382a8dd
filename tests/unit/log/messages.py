"""The content of a log as plain values."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pyarrow as pa

from penstock.log.log import Log
from penstock.log.reading.wal_reader import InObjects
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.units import Offset, PartitionId

P0 = PartitionId(0)


class Message(NamedTuple):
    """An offset and what is stored there."""

    offset: int
    subject: bytes
    headers: bytes
    payload: bytes


def in_batch(batch: Batch) -> list[Message]:
    """The messages of a raw batch; no headers are the empty block."""
    rows = batch.to_arrow()
    columns = [rows.column(name) for name in ("offset", "subject", "headers", "payload")]
    return [
        Message(offset, subject, headers or b"", payload)
        for offset, subject, headers, payload in zip(
            *(column.to_pylist() for column in columns), strict=True
        )
    ]


def stamps_in(batch: Batch) -> list[int]:
    """Timestamps of the messages, in microseconds."""
    stamps: list[int] = batch.to_arrow().column("timestamp").view(pa.int64()).to_pylist()
    return stamps


async def batches_from(
    log: Log, start: int = 0, partition: int = 0, bytes_max: int = 1 << 20
) -> list[Batch]:
    """Everything from `start` to the head; purged offsets are passed over."""
    found: list[Batch] = []
    offset = Offset(start)
    while True:
        answer = await log.read(PartitionId(partition), offset, bytes_max)
        if isinstance(answer, AtHead):
            return found
        if isinstance(answer, Gone):
            offset = answer.earliest
        elif isinstance(answer, InObjects):
            offset = answer.next_offset
        else:
            found += answer
            offset = answer[-1].next_offset


async def messages_from(
    log: Log, start: int = 0, partition: int = 0, bytes_max: int = 1 << 20
) -> list[Message]:
    found = await batches_from(log, start, partition, bytes_max)
    return [message for batch in found for message in in_batch(batch)]


async def payloads_from(log: Log, start: int = 0, partition: int = 0) -> dict[int, bytes]:
    """Payload by offset."""
    return {m.offset: m.payload for m in await messages_from(log, start, partition)}


async def eventually(condition: object, seconds: float = 60.0) -> None:
    """Wait until a function says yes."""
    assert callable(condition)
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{condition} did not come true"
        await asyncio.sleep(0.002)
