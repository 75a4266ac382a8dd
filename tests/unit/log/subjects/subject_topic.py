"""A topic without a log: WAL files, a subject index, and lists with the expected answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pyarrow as pa
from crc32c import crc32c
from pyroaring import BitMap64

from penstock.formats import batches, bodies, packed
from penstock.formats.bodies import SealBody, StartBody
from penstock.formats.frame_table import FrameTableWriter
from penstock.formats.frames import (
    FILE_MAGIC,
    FILE_VERSION,
    Codec,
    FileHeader,
    Flag,
    FrameHeader,
    Kind,
    encode_file_header,
    encode_frame,
)
from penstock.formats.paths import wal_name
from penstock.host.child import Child
from penstock.log.subjects.index import SubjectIndex
from penstock.log.subjects.span_catalog import SealedFile
from penstock.model.batch import Batch
from penstock.model.subjects import Filter
from penstock.model.units import Microseconds, Offset, PartitionId

TOPIC_SUBJECT = b"orders"
MARK = 0x5EED5EED

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    return await asyncio.to_thread(call, *args, **kwargs)


def batch(partition: int, first: int, subjects: bytes | list[bytes] | int) -> Batch:
    """A batch with these subjects; a number stands for that many rows of a typed topic."""
    if isinstance(subjects, int):
        rows = pa.record_batch({"n": list(range(subjects))})
        return Batch(PartitionId(partition), Offset(first), subjects, Microseconds(0), rows)
    count = 1 if isinstance(subjects, bytes) else len(subjects)
    content = packed.columns(subjects, [b""] * count, None)
    return Batch(PartitionId(partition), Offset(first), count, Microseconds(0), content)


def batch_frame(item: Batch, number: int) -> bytes:
    codec, flags, body = batches.encode(item.content, item.timestamps)
    return frame(
        Kind.BATCH, codec, flags, number, body, item.partition, item.first_offset, item.count
    )


def frame(
    kind: Kind,
    codec: Codec,
    flags: int,
    number: int,
    body: Iterable[bytes | bytearray | memoryview],
    partition: int = 0,
    first: int = 0,
    entries: int = 0,
) -> bytes:
    pieces = [bytes(piece) for piece in body]
    size = sum(map(len, pieces))
    header = FrameHeader(
        MARK, size, kind, codec, flags, partition, number, number, 0, first, 0, entries
    )
    return b"".join(bytes(piece) for piece in encode_frame(header, pieces))


def write_wal(directory: Path, sequence: int, frames: Iterable[bytes]) -> SealedFile:
    """A sealed file with these frames between its first and its last one."""
    header = FileHeader(FILE_MAGIC, FILE_VERSION, 0, MARK, sequence, 0, 0, 0, 0, 0)
    start = bodies.encode(StartBody("default/default/orders", 0, b"", b"", b"", {}, {}))
    data = encode_file_header(header)
    data += frame(Kind.CHECKPOINT, Codec.NATIVE, Flag.START, 0, [start])
    data += b"".join(frames)
    seal = bodies.encode(SealBody(crc32c(data), FrameTableWriter().encode()))
    data += frame(Kind.CHECKPOINT, Codec.NATIVE, Flag.SEAL, 1 << 20, [seal])
    path = directory / wal_name(sequence, 0)
    path.write_bytes(data)
    return SealedFile(path, sequence, len(data))


class State:
    """Where partitions start and end, and what is deleted: as the log's own state."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}
        self.nexts: dict[int, int] = {}
        self.deleted: dict[int, BitMap64] = {}

    def start(self, partition: PartitionId) -> Offset:
        return Offset(self.starts.get(partition, 0))

    def next(self, partition: PartitionId) -> Offset:
        return Offset(self.nexts.get(partition, 0))

    def bitmap(self, partition: PartitionId) -> BitMap64 | None:
        return self.deleted.get(partition)


class Topic:
    """Appends, seals, deletes and restarts; `check` compares every answer with the lists."""

    def __init__(self, directory: Path, child: Child, retry_seconds: float = 0.01) -> None:
        directory.mkdir(exist_ok=True)
        self._retry_seconds = retry_seconds
        self.directory, self.child = directory, child
        self.state = State()
        self.files: list[SealedFile] = []
        self.active: list[Batch] = []
        self.truth: dict[int, list[bytes]] = {}
        self.index = self._new_index()

    def append(self, partition: int, subjects: bytes | list[bytes] | int) -> None:
        first = self.state.next(PartitionId(partition))
        item = batch(partition, first, subjects)
        self.state.nexts[partition] = first + item.count
        names = self.truth.setdefault(partition, [])
        if isinstance(subjects, list):
            names += subjects
        else:
            names += [TOPIC_SUBJECT if isinstance(subjects, int) else subjects] * item.count
        self.active.append(item)
        self.index.note(item)

    def seal(self) -> SealedFile:
        frames = [batch_frame(item, number) for number, item in enumerate(self.active, 1)]
        file = write_wal(self.directory, len(self.files) + 1, frames)
        self.files.append(file)
        self.active = []
        self.index.sealed(*file)
        return file

    def delete(self, partition: int, offsets: Iterable[int]) -> None:
        start, stop = self.state.start(PartitionId(partition)), len(self.truth.get(partition, []))
        gone = BitMap64(offset for offset in offsets if start <= offset < stop)
        if gone:
            self.state.deleted[partition] = self.state.deleted.get(partition, BitMap64()) | gone

    def purge(self, partition: int, start: int) -> None:
        start = min(start, self.state.next(PartitionId(partition)))
        if start > self.state.start(PartitionId(partition)):
            self.state.starts[partition] = start
            deleted = self.state.deleted.get(partition, BitMap64())
            deleted.remove_range(0, start)
            if not deleted:
                self.state.deleted.pop(partition, None)

    async def restart(self) -> None:
        await self.index.close()
        self.index = self._new_index()
        await self.index.catch_up(self.files)
        for item in self.active:
            self.index.note(item)

    def live(self, partition: int, text: bytes) -> list[tuple[int, bytes]]:
        """Offsets and subjects that match, by looking at every message."""
        chosen = Filter.parse(text)
        deleted = self.state.deleted.get(partition, BitMap64())
        start = self.state.start(PartitionId(partition))
        return [
            (offset, subject)
            for offset, subject in enumerate(self.truth.get(partition, []))
            if offset >= start and offset not in deleted and chosen.matches(subject)
        ]

    async def check(self, number: int, text: bytes, start: int, stop: int, limit: int) -> None:
        """Every query for one filter."""
        partition, chosen = PartitionId(number), Filter.parse(text)
        live = self.live(number, text)
        offsets = [offset for offset, _ in live]
        later = [offset for offset in offsets if offset >= start]
        index = self.index
        assert await index.last(partition, chosen) == max(offsets, default=None)
        assert await index.next(partition, chosen, Offset(start)) == min(later, default=None)
        found = await index.matching(partition, chosen, Offset(start), limit)
        assert found == later[:limit]
        count = await index.count(partition, chosen, Offset(start), Offset(stop))
        assert count == len([offset for offset in later if offset < stop])
        listed: dict[bytes, tuple[int, int]] = {}
        for offset, subject in live:
            listed[subject] = (listed.get(subject, (0, 0))[0] + 1, offset)
        rows = [(subject, *listed[subject]) for subject in sorted(listed)]
        assert await index.subjects(partition, chosen) == rows
        behind = rows[0][0] if rows else b""
        expected = [row for row in rows if row[0] > behind][:limit]
        assert await index.subjects(partition, chosen, behind, limit) == expected

    def _new_index(self) -> SubjectIndex:
        return SubjectIndex(
            self.directory,
            TOPIC_SUBJECT,
            self.child,
            self.state,
            in_thread,
            retry_seconds=self._retry_seconds,
        )
