import asyncio
import dataclasses
import errno
from pathlib import Path

import pytest

from penstock.log.logs import SharedLimits
from penstock.log.shared.engine import Reserve
from penstock.model.names import TopicName
from penstock.model.run import Run
from penstock.model.units import Offset
from tests.unit.log.conftest import TOPIC, OpenLogs
from tests.unit.log.disks import Faulty, on
from tests.unit.log.messages import P0


async def test_all_logs_of_a_broker_share_one_engine_that_does_not_change(logs: OpenLogs) -> None:
    opened = await logs()
    one, other = await opened.create(TOPIC), await opened.create(TopicName("t", "n", "x"))
    engine = one._engine
    assert engine is other._engine
    assert engine.cache is opened.cache
    with pytest.raises(dataclasses.FrozenInstanceError):
        engine.settings = engine.settings  # type: ignore[misc]


async def test_messages_groups_and_reads_are_counted_over_all_logs(logs: OpenLogs) -> None:
    opened = await logs(limits=SharedLimits(cache_bytes_max=0, reserve_bytes=4096))
    log = await opened.create(TOPIC)
    await asyncio.gather(*(log.append(Run(b"s", [b"x"] * 3)) for _ in range(4)))
    await log.append(Run(b"s", [b"y"]))
    await log.read(P0, Offset(0))
    counters = opened.counters
    assert counters.messages == 13
    assert counters.append_ms.count >= 2
    assert counters.sync_ms.count >= 2
    assert counters.read_ms.count == 1


SIZE = 1 << 16


def test_the_reserve_is_taken_given_up_and_taken_back(tmp_path: Path) -> None:
    reserve = Reserve(Faulty(), tmp_path, SIZE)
    assert reserve.restore()
    assert (tmp_path / "reserve").stat().st_size == SIZE
    assert reserve.restore()
    assert reserve.release()
    assert not (tmp_path / "reserve").exists()
    assert not reserve.release()
    assert reserve.restore()


def test_the_reserve_is_not_taken_when_that_would_fill_the_disk_again(tmp_path: Path) -> None:
    disk = Faulty()
    reserve = Reserve(disk, tmp_path, SIZE)
    disk.free = 4 * SIZE - 1
    assert not reserve.restore()
    assert not (tmp_path / "reserve").exists()
    disk.free = 4 * SIZE
    assert reserve.restore()


def test_a_reserve_that_cannot_be_taken_is_no_error(tmp_path: Path) -> None:
    disk = Faulty()
    disk.fail = on("allocate", errno.ENOSPC)
    reserve = Reserve(disk, tmp_path, SIZE)
    assert not reserve.restore()
    assert reserve.restore()


def test_a_disk_that_cannot_tell_its_free_space_gets_no_reserve(tmp_path: Path) -> None:
    disk = Faulty()
    disk.fail = on("free_bytes", errno.EIO)
    reserve = Reserve(disk, tmp_path, SIZE)
    assert not reserve.restore()
    assert reserve.restore()
