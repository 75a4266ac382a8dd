"""Everything that is in the logs, told to the parent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from penstock.formats.frames import Kind
from penstock.host.disk import Disk
from penstock.log import Log, Logs, find_wal_files, scan_file, verify
from penstock.model.batch import Batch
from penstock.model.errors import DataDamaged, PenstockError
from penstock.model.subjects import Filter
from penstock.model.units import PartitionId
from tests.log_reader import LogReader, ObjectSource
from tests.powercut.facts import Ends, Read, Recovered, Settled, Tell
from tests.powercut.payload import identify_all, subject

STUCK_SECONDS: Final = 30
READ_BYTES: Final = 64 << 10
SUBJECTS_MAX: Final = 1 << 20

_T = TypeVar("_T")


async def tell_everything(
    logs: Logs,
    tell: Tell,
    index: bool = True,
    disk_failed: bool = False,
    objects: Callable[[Log], ObjectSource | None] = lambda _: None,
    troubles: Sequence[str] = (),
) -> None:
    """Every message of every partition by a reader, ends, settlements, and what is wrong.

    With `index`, the subject index is held against what was read. Where the disk has failed, files
    end in bytes that do not count, and are not looked at one by one. `troubles` are passed on.
    """
    troubles = [*troubles]
    troubles += [f"{name} is unavailable: {why}" for name, why in logs.unavailable.items()]
    for log in logs:
        for partition in log.partitions():
            reader = LogReader(
                log, partition, log.start_offset(partition), READ_BYTES, objects(log)
            )
            troubles += await _tell_partition(log, partition, reader, tell, index)
        troubles += [f"{log.topic} misses {missing}" for missing in log.status().missing]
        troubles += [] if disk_failed else _of_files(log, _problems_of_files)
        tell(Settled(log.topic, _of_files(log, _settlements)))
    tell(Recovered([log.topic for log in logs], troubles))


def identified(topic: str, batch: Batch) -> tuple[Read, list[str]]:
    """Which messages a batch has, and what is wrong with their bytes."""
    rows = batch.to_arrow()
    subjects, payloads = rows.column("subject").to_pylist(), rows.column("payload").to_pylist()
    ids, wrong = identify_all(subjects, payloads)
    read = Read(topic, batch.partition, rows.column("offset").to_pylist(), ids)
    return read, [f"{topic}: {trouble}" for trouble in wrong]


async def _tell_partition(
    log: Log, partition: PartitionId, reader: LogReader, tell: Tell, index: bool
) -> list[str]:
    troubles: list[str] = []
    start, next_ = log.start_offset(partition), log.next_offset(partition)
    files_start = log.files.start(partition)
    stamp = 0
    subjects: Subjects = {}
    async for batch in _until(reader, next_, troubles):
        read, wrong = identified(log.topic, batch)
        troubles += wrong
        stamps = [stamp, *batch.timestamp_column().to_pylist()]
        if stamps != sorted(stamps):
            troubles.append(f"{log.topic} {partition}: time goes back at {batch.first_offset}")
        stamp = stamps[-1]
        for offset, id_ in zip(read.offsets, read.ids, strict=True):
            subjects[subject(id_)] = (subjects.get(subject(id_), (0, 0))[0] + 1, offset)
        tell(read)
    indexed = await _indexed(log, partition) if index else subjects
    for name, in_log, in_index in _differences(subjects, indexed):
        sentence = f"{name!r} has (messages, last) {in_log}, in the index {in_index}"
        troubles.append(f"{log.topic} {partition}: {sentence}")
    tell(Ends(log.topic, partition, start, next_, log.live_count(partition), files_start))
    return troubles


Subjects = dict[bytes, tuple[int, int]]
"""How many messages each has, and the offset of the last."""


def _differences(
    one: Subjects, other: Subjects
) -> Iterator[tuple[bytes, tuple[int, int] | None, tuple[int, int] | None]]:
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            yield name, one.get(name), other.get(name)


async def _indexed(log: Log, partition: PartitionId) -> Subjects:
    rows = await log.index.subjects(partition, Filter.parse(b">"), limit=SUBJECTS_MAX)
    return {name: (messages, last) for name, messages, last in rows}


async def _until(reader: LogReader, next_: int, troubles: list[str]) -> AsyncIterator[Batch]:
    """Batches up to an offset; a reader that got everything would wait for more."""
    while reader.next_offset < next_:
        step = asyncio.ensure_future(anext(reader))
        waited = 0.0
        while not step.done() and reader.next_offset < next_ and waited < STUCK_SECONDS:
            await asyncio.wait([step], timeout=0.01)
            waited += 0.01
        if not step.done():
            step.cancel()
            if waited >= STUCK_SECONDS:
                troubles.append(f"a reader waits at {reader.next_offset} before {next_}")
            return
        try:
            yield step.result()
        except DataDamaged as error:
            troubles.append(str(error))
            reader.next_offset = error.next
        except PenstockError as error:
            troubles.append(str(error))
            return


def _of_files(log: Log, look: Callable[[Log], Iterator[_T]]) -> list[_T]:
    """What is found in the files; looks again when one was dropped meanwhile."""
    while True:
        with suppress(FileNotFoundError):
            return list(look(log))


def _problems_of_files(log: Log) -> Iterator[str]:
    for report in verify(Disk(), log.directory):
        for problem in report.problems:
            yield f"{log.topic} {report.path.name} {problem.position}: {problem.sentence}"


def _settlements(log: Log) -> Iterator[int]:
    for path in find_wal_files(log.directory):
        scanned = scan_file(Disk(), path, None, 0)
        for item in scanned.found:
            if item.header.kind == Kind.SETTLE:
                yield int(bytes(scanned.body(item)))
