import asyncio

from penstock.log.logs import SharedLimits
from penstock.model.run import Run
from penstock.model.units import Offset
from tests.unit.log.conftest import TOPIC, OpenLogs
from tests.unit.log.messages import P0


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
