"""Scenarios on a disk that fails in use: the image of the file system lies on another one.

When the power of the outer file system is cut, the inner one's device answers every write and every
flush with EIO. What was flushed before is there when the outer one is mounted again.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from penstock.log import LogMode, LogSettings, SharedLimits
from penstock.model.errors import DurabilityUnmet, LogReadOnly
from penstock.model.units import Offset
from tests.fault.witness import PARTITION, Witness
from tests.log_reader import LogReader
from tests.powercut.image import Image, cut_power

TOPICS = 12
"""Enough to be synced by one sync of the file system, too."""
MESSAGES = 200
CAUSE = r"\((?:EIO|EROFS)\)"
SETTINGS = LogSettings(file_bytes_max=1 << 20, retry_seconds=0.01)
LIMITS = SharedLimits(reserve_bytes=64 << 10, cache_bytes_max=1 << 20)


async def a_failed_fsync_stops_the_logs_and_loses_nothing(directory: Path) -> None:
    outer, inner = mount(directory)
    witness = Witness(inner.mounted / "logs", SETTINGS, LIMITS)
    await witness.open()
    logs = [await witness.create(f"t{number}") for number in range(TOPICS)]
    producers = [asyncio.create_task(witness.publish_until_it_fails(log)) for log in logs]
    while any(log.next_offset(PARTITION) < MESSAGES for log in logs):
        await asyncio.sleep(0.001)
    cut_power(outer.mounted)

    for error in await asyncio.gather(*producers):
        assert isinstance(error, DurabilityUnmet)
        assert re.search(CAUSE, str(error))
    for log in logs:
        assert log.mode is LogMode.READ_ONLY
        with pytest.raises(LogReadOnly, match=CAUSE):
            await witness.publish(log)
        with pytest.raises(LogReadOnly, match=CAUSE):
            await witness.delete(log, [0])
    assert witness.logs.ready()[0] is False
    assert re.search(CAUSE, str(witness.logs.ready()[1]))
    await witness.logs.close()
    await a_start_is_read_only(witness)

    inner.unmount()
    outer.unmount()
    outer.mount()
    inner.mount()
    await witness.open()
    for log in witness.logs:
        await witness.publish(log)
    await witness.reopen()
    await witness.logs.close()


async def a_start_is_read_only(witness: Witness) -> None:
    """What is known to be on the disk is served, as far as the kernel still has it in memory.

    It forgets a block of the file system's own that it failed to write: a log behind such a block
    cannot be read, and says so.
    """
    await witness.start()
    unavailable = witness.logs.unavailable
    assert len(list(witness.logs)) + len(unavailable) == TOPICS > len(unavailable)
    assert all("Input/output error" in reason for reason in unavailable.values())
    for log in witness.logs:
        assert log.mode is LogMode.READ_ONLY
        for refused in (witness.publish(log), log.delete(PARTITION, [0])):
            with pytest.raises(LogReadOnly, match=CAUSE):
                await refused
        reader, end = LogReader(log, PARTITION, Offset(0)), log.next_offset(PARTITION)
        assert end >= MESSAGES // 2
        while reader.next_offset < end:
            await anext(reader)
        assert reader.next_offset == end
    assert witness.logs.ready()[0] is False
    await witness.logs.close()


def mount(directory: Path) -> tuple[Image, Image]:
    outer = Image(directory)
    outer.make()
    outer.mount()
    inner = Image(outer.mounted, size_bytes=64 << 20)
    inner.make()
    inner.mount("errors=remount-ro")
    return outer, inner
