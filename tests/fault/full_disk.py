"""Scenarios on a disk that is full: a small tmpfs, which answers ENOSPC as any file system does."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.log import Log, LogMode, LogSettings, SharedLimits
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model.errors import DurabilityUnmet, LogReadOnly, StartRefused
from penstock.model.units import Offset
from tests.fault.witness import PARTITION, Witness
from tests.powercut.broker import Broker
from tests.powercut.history import History
from tests.powercut.orders import Orders, TopicOrders
from tests.powercut.partition import Violation
from tests.powercut.watch import Watch

DISK_BYTES = 24 << 20
RESERVE_BYTES = 256 << 10
SETTINGS = LogSettings(file_bytes_max=1 << 20, resume_free_bytes=4 << 20, retry_seconds=0.01)
LIMITS = SharedLimits(reserve_bytes=RESERVE_BYTES, cache_bytes_max=1 << 20)


def mount(directory: Path) -> Path:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(directory)], check=True
    )
    return directory / "logs"


async def until_open(witness: Witness, *topics: str) -> None:
    while any(witness.log(topic).mode is not LogMode.OPEN for topic in topics):
        await asyncio.sleep(0.01)


async def producers_are_told_and_deletions_make_room(directory: Path) -> None:
    witness = Witness(mount(directory), SETTINGS, LIMITS)
    await witness.open()
    log = await witness.create("t")
    error = await witness.publish_until_it_fails(log)
    assert isinstance(error, DurabilityUnmet)
    assert "ENOSPC" in str(error)

    assert log.mode is not LogMode.OPEN
    with pytest.raises(LogReadOnly, match="ENOSPC"):
        await witness.publish(log)
    assert witness.logs.ready()[0] is False
    assert "ENOSPC" in str(witness.logs.ready()[1])

    await witness.delete(log, list(range(10)))
    assert log.mode is LogMode.DELETES_ONLY
    with pytest.raises(LogReadOnly, match="ENOSPC"):
        await witness.publish(log)

    await witness.purge(log, log.next_offset(PARTITION) - 100)
    await until_open(witness, "t")
    for _ in range(100):
        await witness.publish(log)
    while not (directory / "logs" / "reserve").exists():
        await asyncio.sleep(0.01)
    await witness.reopen()
    await witness.publish(witness.log("t"))
    await witness.logs.close()


async def writing_resumes_when_somebody_else_makes_room(directory: Path) -> None:
    witness = Witness(mount(directory), SETTINGS, LIMITS)
    await witness.open()
    one, other = await witness.create("one"), await witness.create("other")
    filler = directory / "filler"
    filler.write_bytes(bytes(DISK_BYTES * 3 // 4))
    for log in (one, other):
        assert "ENOSPC" in str(await witness.publish_until_it_fails(log))
    filler.unlink()
    await until_open(witness, "one", "other")
    for log in (one, other):
        await witness.publish(log)
    await witness.reopen()
    await witness.logs.close()


async def a_start_with_a_torn_tail_serves_reads_and_resumes_when_there_is_room(
    directory: Path,
) -> None:
    witness, wal = await stopped(directory)
    with wal[-1].open("ab") as file:
        file.write(b"the beginning of a write")
    torn = wal[-1].read_bytes()
    filler = fill(directory)
    await witness.open()
    log = await read_only(witness)
    await witness.delete(log, [0, 7])
    assert log.mode is LogMode.DELETES_ONLY
    assert not (directory / "logs" / "reserve").exists()
    assert wal[-1].read_bytes() == torn
    await witness.look()
    filler.unlink()
    await resumes(witness)


async def a_start_with_a_sealed_last_file_serves_reads_and_resumes_when_there_is_room(
    directory: Path,
) -> None:
    witness, wal = await stopped(directory)
    wal[-1].unlink()
    (directory / "logs" / "reserve").unlink()
    filler = fill(directory)
    await witness.open()
    log = await read_only(witness)
    for deletion in (log.delete(PARTITION, [0]), log.purge(PARTITION, Offset(5))):
        with pytest.raises(LogReadOnly, match="ENOSPC"):
            await deletion
    filler.unlink()
    await resumes(witness)


async def metadata_on_a_full_disk_refuse_the_start_in_one_line(directory: Path) -> None:
    place = mount(directory) / "metadata"
    await (await SqliteMetadata.open(place)).close()
    filler = fill(directory)
    with pytest.raises(StartRefused, match=r"cannot be opened: .*; is the disk full"):
        await SqliteMetadata.open(place)
    filler.unlink()
    await (await SqliteMetadata.open(place)).close()


async def stopped(directory: Path) -> tuple[Witness, list[Path]]:
    """A log that was closed: its files, of which the last holds no message."""
    witness = Witness(mount(directory), SETTINGS, LIMITS)
    await witness.open()
    log = await witness.create("t")
    for _ in range(20):
        await witness.publish(log)
    log.rotate()
    while not log.index.applied:
        await asyncio.sleep(0.01)
    await witness.logs.close()
    wal = sorted((directory / "logs/default/default/t").glob("*.log"))
    assert len(wal) == 2
    return witness, wal


def fill(directory: Path) -> Path:
    """Take every byte that is free."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert not shutil.disk_usage(directory).free
    return filler


async def read_only(witness: Witness) -> Log:
    log = witness.log("t")
    assert log.mode is LogMode.READ_ONLY
    assert "ENOSPC" in str(witness.logs.ready()[1])
    with pytest.raises(LogReadOnly, match="ENOSPC"):
        await witness.publish(log)
    return log


async def resumes(witness: Witness) -> None:
    await until_open(witness, "t")
    for _ in range(20):
        await witness.publish(witness.log("t"))
    await witness.reopen()
    await witness.publish(witness.log("t"))
    await witness.reopen()
    await witness.logs.close()


async def a_killed_broker_has_everything_once_there_is_room(directory: Path) -> None:
    mount(directory)
    history = History()
    topics = tuple(TopicOrders(f"default/default/t{number}") for number in range(4))
    filler = directory / "filler"
    filler.write_bytes(bytes(DISK_BYTES * 3 // 4))
    busy = Orders(str(directory), seed=1, cycle=1, topics=topics, payload_bytes_max=20_000)
    cycle(busy, history, seconds=3)
    assert shutil.disk_usage(directory).free < DISK_BYTES // 100
    filler.unlink()
    look = Orders(str(directory), seed=1, cycle=2, disk_failed=True)
    cycle(look, history, seconds=0)
    assert history.messages


def cycle(orders: Orders, history: History, seconds: float) -> None:
    """A broker process that recovers, is busy for a while and is killed."""
    broker = Broker()
    violations: list[Violation] = []
    try:
        watch = Watch(broker, history, orders, violations)
        watch.await_recovery()
        assert watch.recovered, broker.words()
        watch.listen(seconds)
        broker.kill()
        watch.drain()
    finally:
        broker.close()
    assert not violations, "\n".join(map(str, violations))
