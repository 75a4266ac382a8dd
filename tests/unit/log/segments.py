"""WAL files written by a real log, with the messages written to them.

What must be true after damage is worked out from these values alone, never by the code under test.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock.formats.bodies import ObjectRef
from penstock.formats.frames import Kind
from penstock.log.log import Log
from penstock.log.logs import Logs, SharedLimits
from penstock.log.settings import LogSettings
from penstock.model.names import TopicName
from penstock.model.run import ColumnRun, Run
from penstock.model.units import PartitionId
from tests.unit.log.disks import Unsynced

TOPIC = TopicName("default", "default", "t")
FILE_HEADER_BYTES = 64
FRAME_HEADER_BYTES = 64


class Stretch(NamedTuple):
    """Offsets of one partition; no messages for rows that lie in objects."""

    partition: int
    first: int
    messages: tuple[object, ...]
    size: int

    @property
    def next(self) -> int:
        return self.first + self.size


class Written(NamedTuple):
    """A frame to be written."""

    kind: Kind
    group: int
    stretches: tuple[Stretch, ...] = ()


class Frame(NamedTuple):
    """A frame in its place."""

    number: int
    position: int
    end: int
    durable: int
    written: Written

    @property
    def body(self) -> int:
        return self.position + FRAME_HEADER_BYTES


class Segment(NamedTuple):
    """A file, its frames, and the bytes it had after each group."""

    name: str
    data: bytes
    frames: tuple[Frame, ...]

    @property
    def sizes(self) -> list[int]:
        """Where each group ended."""
        groups = {frame.written.group: frame.end for frame in self.frames}
        return list(groups.values())

    def damaged(self, start: int, content: bytes) -> bytes:
        return self.data[:start] + content + self.data[start + len(content) :]

    def frame_at(self, position: int) -> Frame:
        return next(f for f in self.frames if f.position <= position < f.end)


def placed(name: str, data: bytes, written: list[Written]) -> Segment:
    """Walk the file by its lengths alone, as docs/formats.md describes them."""
    first = int(name[15:31])
    frames: list[Frame] = []
    position, durable = FILE_HEADER_BYTES, first
    for number, what in enumerate(written, first):
        (size,) = struct.unpack_from("<I", data, position + 4)
        end = position + (FRAME_HEADER_BYTES + size + 4 + 7) // 8 * 8
        if not frames or frames[-1].written.group != what.group:
            durable = number
        frames.append(Frame(number, position, end, durable, what))
        position = end
    assert position == len(data), "the file holds other frames than were written"
    for frame in frames:
        fields = struct.unpack_from("<IIBBHIQQQqqI", data, frame.position)
        facts = (fields[2], fields[6], fields[7])
        assert facts == (frame.written.kind, frame.number, frame.durable)
    return Segment(name, data, tuple(frames))


def raw(partition: int, first: int, *payloads: bytes) -> Stretch:
    return Stretch(partition, first, payloads, len(payloads))


def rows(partition: int, first: int, *values: int) -> Stretch:
    return Stretch(partition, first, values, len(values))


def run(partition: int, *payloads: bytes) -> Run:
    return Run(b"s.%d" % partition, list(payloads), partition=PartitionId(partition))


def typed(partition: int, *values: int) -> ColumnRun:
    return ColumnRun(pa.record_batch({"n": pa.array(values, pa.int32())}), PartitionId(partition))


async def mixed(log: Log) -> list[Written]:
    """Groups of every kind of frame; the last one has two frames and no marker after it."""
    written = [Written(Kind.CHECKPOINT, 0)]
    await log.append(run(0, b"zero", b"one"))
    written.append(Written(Kind.BATCH, 1, (raw(0, 0, b"zero", b"one"),)))
    await asyncio.gather(log.append(run(0, b"two")), log.append(run(1, b"uno" * 9)))
    written.append(Written(Kind.BATCH, 2, (raw(0, 2, b"two"),)))
    written.append(Written(Kind.BATCH, 2, (raw(1, 0, b"uno" * 9),)))
    await log.append(typed(2, 7, 8))
    written.append(Written(Kind.BATCH, 3, (rows(2, 0, 7, 8),)))
    await log.delete(PartitionId(0), [1])
    written.append(Written(Kind.DELETE, 4))
    await log.settle(b"settled", 1)
    written.append(Written(Kind.SETTLE, 5))
    refs = [ObjectRef("k", 2, 9, 9)]
    await log.link("app", 1, {PartitionId(0): refs, PartitionId(3): refs})
    linked = (Stretch(0, 3, (), 2), Stretch(3, 0, (), 2))
    written.append(Written(Kind.LINK, 6, linked))
    await asyncio.gather(log.append(run(0, b"five", b"")), log.append(run(1, b"due")))
    written.append(Written(Kind.BATCH, 7, (raw(0, 5, b"five", b""),)))
    written.append(Written(Kind.BATCH, 7, (raw(1, 1, b"due"),)))
    return written


async def many(log: Log) -> list[Written]:
    """Sixty frames of one message in partition 0, with those of others between, a few far apart."""
    written = [Written(Kind.CHECKPOINT, 0)]

    async def append(partition: int, first: int, payload: bytes) -> None:
        await log.append(run(partition, payload))
        stretches = (raw(partition, first, payload),)
        written.append(Written(Kind.BATCH, len(written), stretches))

    for number in range(60):
        await append(0, number, b"zero %d" % number)
        if number % 3 == 0:
            await append(1, number // 3, b"one %d" % number)
        if number % 11 == 5:
            await log.settle(b"settled", 1)
            written.append(Written(Kind.SETTLE, len(written)))
        if number % 13 == 5:
            await log.delete(PartitionId(0), [number])
            written.append(Written(Kind.DELETE, len(written)))
        if number % 25 == 24:
            await append(2, number // 25, bytes(5000))
    return written


def make(
    directory: Path,
    write: Callable[[Log], Awaitable[list[Written]]],
    closed: bool = False,
) -> Segment:
    """The one file of a log, as a killed process leaves it, or a closed one."""

    async def run_it() -> Segment:
        logs = await _opened(directory)
        written = await write(await logs.create(TOPIC))
        (path,) = _wal_files(directory)
        data = path.read_bytes()
        await logs.close()
        if closed:
            data = path.read_bytes()
            written.append(Written(Kind.CHECKPOINT, written[-1].group + 1))
        return placed(path.name, data, written)

    return asyncio.run(run_it())


def make_several(directory: Path, count: int = 4) -> list[Segment]:
    """`count` files, all but the last sealed; partition 1 is in the even ones only."""

    async def run_it() -> list[Segment]:
        logs = await _opened(directory)
        log = await logs.create(TOPIC)
        written: list[list[Written]] = []
        ones = 0
        for number in range(count):
            zeros = (b"%d-a" % number, b"%d-b" % number * 40)
            await log.append(run(0, *zeros))
            frames = [Written(Kind.CHECKPOINT, 0)]
            frames.append(Written(Kind.BATCH, 1, (raw(0, 2 * number, *zeros),)))
            if number % 2 == 0:
                await log.append(run(1, b"%d-c" % number))
                frames.append(Written(Kind.BATCH, 2, (raw(1, ones, b"%d-c" % number),)))
                ones += 1
            if number < count - 1:
                log.rotate()
                frames.append(Written(Kind.CHECKPOINT, 3))
            written.append(frames)
        files = [(path.name, path.read_bytes()) for path in _wal_files(directory)]
        await logs.close()
        return [
            placed(name, data, frames) for (name, data), frames in zip(files, written, strict=True)
        ]

    return asyncio.run(run_it())


async def _opened(directory: Path) -> Logs:
    settings, limits = LogSettings(idle_seconds=600), SharedLimits(reserve_bytes=4096)
    logs = Logs(directory, settings, limits, Unsynced())
    await logs.open()
    return logs


def _wal_files(directory: Path) -> list[Path]:
    return sorted((directory / "default/default/t").glob("*.log"))
