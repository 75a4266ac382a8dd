"""The subject index at scale: build rate, memory, disk and latency with every subject distinct.

Messages go the way they go in the broker: noted batch by batch, sealed by file, taken in by the
child process while more arrive. WAL files are removed once they are taken in.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap64

from bench.report import Cell, Report, Table, Target
from bench.workload import directory, on_loop
from penstock.formats import batches, bodies
from penstock.formats.bodies import StartBody
from penstock.formats.frames import (
    FILE_MAGIC,
    FILE_VERSION,
    Buffer,
    Codec,
    FileHeader,
    Flag,
    FrameHeader,
    Kind,
    encode_file_header,
    encode_frame,
)
from penstock.formats.paths import parse_wal_name, wal_name
from penstock.host.child import Child
from penstock.host.threads import WorkerThreads
from penstock.log.subjects.index import SubjectIndex
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.subjects import Filter
from penstock.model.units import Microseconds, Offset, PartitionId

GROWN_MIB_MAX: Final = 256
FILE_BYTES: Final = 64 << 20
BATCH_MESSAGES: Final = 1000
PAYLOAD_BYTES: Final = 100
SITES: Final = 1000
PARTITION: Final = PartitionId(0)
MARK: Final = 0x5EED5EED
_PRIME: Final = 2_147_483_647


class _State:
    """A partition without deletions."""

    stored = 0

    def start(self, partition: PartitionId) -> Offset:
        return Offset(0)

    def next(self, partition: PartitionId) -> Offset:
        return Offset(self.stored)

    def bitmap(self, partition: PartitionId) -> BitMap64 | None:
        return None


class _WalFile:
    """A file that is written frame by frame and not sealed."""

    def __init__(self, directory: Path, sequence: int) -> None:
        self.path, self.sequence = directory / wal_name(sequence, 0), sequence
        header = FileHeader(FILE_MAGIC, FILE_VERSION, 0, MARK, sequence, 0, 0, 0, 0, 0)
        self._pieces: list[Buffer] = [encode_file_header(header)]
        self.size, self._number = len(self._pieces[0]), 0
        start = bodies.encode(StartBody("default/default/bench", 0, b"", b"", b"", {}, {}))
        self._add(Kind.CHECKPOINT, Codec.NATIVE, Flag.START, [start], 0, 0)

    def add(self, batch: Batch) -> None:
        codec, flags, body = batches.encode(batch.content, None)
        self._add(Kind.BATCH, codec, flags, body, batch.first_offset, batch.count)

    def write(self) -> None:
        with self.path.open("wb") as file:
            file.writelines(self._pieces)

    def _add(
        self, kind: Kind, codec: Codec, flags: int, body: list[Buffer], first: int, entries: int
    ) -> None:
        size = sum(map(len, body))
        number = self._number
        header = FrameHeader(
            MARK, size, kind, codec, flags, 0, number, number, 0, first, 0, entries
        )
        self._pieces += encode_frame(header, body)
        self.size += header.frame_bytes
        self._number += 1


def subject_of(number: int, messages: int) -> bytes:
    """The subject of a message; all are distinct, and neighbours are far apart in order."""
    key = number * _PRIME % messages
    return b"site.%03d.device.%08d.state" % (key % SITES, key)


def run(quick: bool) -> Report:
    figures = measure(1_000_000 if quick else 10_000_000)
    rows: list[list[Cell]] = [[name, value] for name, value in figures.items()]
    title = f"subjects: {figures['messages']:,.0f} messages, each with a subject of its own"
    grown = max(value for name, value in figures.items() if "above idle" in name)
    return Report(
        [Table(title, ["figure", "value"], rows)],
        [
            Target(
                f"subjects: the broker grows by less than {GROWN_MIB_MAX} MiB",
                f"{grown:.0f} MiB at the peak",
                grown < GROWN_MIB_MAX,
            )
        ],
    )


def measure(messages: int) -> dict[str, float]:
    """Figures for a number of messages with distinct subjects."""
    with directory() as path:
        return on_loop(_measure(path, messages))


async def _measure(path: Path, messages: int) -> dict[str, float]:
    child, workers, state = Child(), WorkerThreads(4, "reader"), _State()
    index = SubjectIndex(path, b"bench", child, state, workers.run)
    figures: dict[str, float] = {"messages": messages}
    try:
        idle = _memory_mib("self", "VmRSS")
        figures |= await _with_lag("build", _build(path, index, state, messages))
        assert child.pid is not None
        figures["broker after build, MiB above idle"] = _memory_mib("self", "VmRSS") - idle
        figures["broker peak of build, MiB above idle"] = _memory_mib("self", "VmHWM") - idle
        figures["child after build, MiB"] = _memory_mib(str(child.pid), "VmRSS")
        figures["child peak of build, MiB"] = _memory_mib(str(child.pid), "VmHWM")
        spans = list(path.glob("subjects-*"))
        size = sum(span.stat().st_size for span in spans)
        figures |= {"spans": len(spans), "store, MiB": size / 2**20}
        figures["store, bytes a subject"] = size / messages
        figures |= await _ask(index, messages)
        figures["broker after queries, MiB above idle"] = _memory_mib("self", "VmRSS") - idle
    finally:
        await index.close()
        await child.close()
        await workers.close()
    return figures


async def _build(path: Path, index: SubjectIndex, state: _State, messages: int) -> dict[str, float]:
    noting, nbytes = 0.0, 0
    begun = time.perf_counter()
    file = _WalFile(path, 1)
    for batch in _batches(messages):
        before = time.perf_counter()
        index.note(batch)
        noting += time.perf_counter() - before
        state.stored = batch.next_offset
        file.add(batch)
        if file.size >= FILE_BYTES or batch.next_offset == messages:
            nbytes = max(nbytes, index.nbytes)
            await asyncio.to_thread(file.write)
            index.sealed(file.path, file.sequence)
            file = _WalFile(path, file.sequence + 1)
            await _room(path, index)
        await asyncio.sleep(0)
    last = time.perf_counter()
    while index.unapplied:
        await asyncio.sleep(0.001)
    applied = time.perf_counter()
    await index.settled()
    done = time.perf_counter()
    return {
        "note, ns a message": noting / messages * 1e9,
        "index memory at a seal, MiB": nbytes / 2**20,
        "index memory at the end, MiB": index.nbytes / 2**20,
        "last file taken in, s after its seal": applied - last,
        "all merged, s after the last seal": done - last,
        "messages a second, written, taken in and merged": messages / (done - begun),
    }


async def _room(path: Path, index: SubjectIndex) -> None:
    """Wait until at most one sealed file is pending, as a real disk would enforce."""
    while len(index.unapplied) > 1:
        await asyncio.sleep(0.001)
    for wal in path.glob("wal-*"):
        named = parse_wal_name(wal.name)
        if named is not None and named[0] not in index.unapplied:
            wal.unlink()


def _batches(messages: int) -> Iterator[Batch]:
    for first in range(0, messages, BATCH_MESSAGES):
        count = min(BATCH_MESSAGES, messages - first)
        subjects = [subject_of(number, messages) for number in range(first, first + count)]
        payloads = pa.array([b"x" * PAYLOAD_BYTES] * count, pa.binary())
        columns = Columns(pa.array(subjects, pa.binary()), payloads)
        yield Batch(PARTITION, Offset(first), count, Microseconds(0), columns)


async def _ask(index: SubjectIndex, messages: int) -> dict[str, float]:
    pick = random.Random(1)  # repeatable, not secret

    def literal() -> Filter:
        return Filter.parse(subject_of(pick.randrange(messages), messages))

    def missing() -> Filter:
        return Filter.parse(b"site.%03d.device.none" % pick.randrange(SITES))

    def wild() -> Filter:
        return Filter.parse(b"site.%03d.device.*.state" % pick.randrange(SITES))

    def offset() -> Offset:
        return Offset(pick.randrange(messages))

    end = Offset(messages)
    every = Filter.parse(b"site.*.device.*.state")
    position = Offset(0)

    async def walk() -> None:
        nonlocal position
        found = await index.matching(PARTITION, every, position, 1000)
        position = Offset(found[-1] + 1)

    cold = _timed(
        "count, all match, cold", 1, lambda: index.count(PARTITION, every, Offset(1), end)
    )
    figures = await _with_lag("cold count", cold)
    for name, times, ask in (
        ("last", 5000, lambda: index.last(PARTITION, literal())),
        ("last of none", 2000, lambda: index.last(PARTITION, missing())),
        ("next, literal", 5000, lambda: index.next(PARTITION, literal(), offset())),
        ("next, wildcard 1 in 1000", 500, lambda: index.next(PARTITION, wild(), offset())),
        ("count, wildcard 1 in 1000", 200, lambda: index.count(PARTITION, wild(), Offset(0), end)),
        ("count, all match", 100, lambda: index.count(PARTITION, every, offset(), end)),
        ("next 1000, all match", 1000, walk),
        ("page of 1000 subjects", 50, lambda: index.subjects(PARTITION, wild(), b"", 1000)),
    ):
        figures |= await _timed(name, times, ask)
    return figures


async def _with_lag(name: str, work: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    """Figures of the work, and the delay of the loop while it ran."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append((time.perf_counter() - begun - 0.001) * 1e3)

    watching = asyncio.create_task(watch())
    figures = await work
    watching.cancel()
    cuts = quantiles(late, n=100)
    return figures | {f"loop late in {name}, p50 ms": cuts[49], f"p99 ms in {name}": cuts[98]}


async def _timed(name: str, times: int, ask: Callable[[], Awaitable[object]]) -> dict[str, float]:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - begun) * 1e6)
    if times == 1:
        return {f"{name}, us": took[0]}
    cuts = quantiles(took, n=100)
    return {f"{name}, p50 us": cuts[49], f"{name}, p99 us": cuts[98]}


def _memory_mib(process: str, field: str) -> float:
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise ValueError(field)
