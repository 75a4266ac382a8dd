from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.host.child import ChildFailed
from penstock.host.disk import Disk
from penstock.model.units import Offset, PartitionId
from penstock.tiers.topic_tier import TopicTier
from penstock.tiers.upload.next_object import MadeObject, ObjectRequest, make_object
from tests.broker.storage import Broker, World, fill, filled, flush, read_all, spans, started
from tests.unit.host.test_shared_memory import open_memories


async def made_both_ways(broker: Broker, request: ObjectRequest) -> tuple[MadeObject, MadeObject]:
    """One object, made in a thread and in the child process."""
    makers = Disk(), broker.threads, broker.child
    pids = [broker.child.pid]
    here = await make_object(request, *makers)
    pids.append(broker.child.pid)
    apart = await make_object(replace(request, child_bytes_min=0), *makers)
    assert pids == [None, None]
    assert broker.child.pid is not None
    return here, apart


async def held_up(broker: Broker, tier: TopicTier) -> tuple[int, asyncio.Task[int]]:
    """Start a round that waits for the suspended child process."""
    pid = await broker.child.call(os.getpid)
    os.kill(pid, signal.SIGSTOP)
    attempt = asyncio.create_task(tier.upload_round())
    await asyncio.sleep(0.05)
    return pid, attempt


@pytest.mark.feature("T12")
async def test_the_child_process_makes_the_very_object_that_a_thread_makes(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1 << 20, backlog_bytes_max=8 << 20)
    await fill(tier.log, 200)
    await tier.log.delete(PartitionId(0), [Offset(7), Offset(8), Offset(150)], "test")
    here, apart = await made_both_ways(broker, tier._request(3))
    assert here.entry is not None
    assert here == apart
    offsets = pq.read_table(pa.BufferReader(apart.data)).column("offset").to_pylist()
    assert offsets == [n for n in range(200) if n not in (7, 8, 150)]


async def test_an_object_grows_up_to_its_limits_while_more_is_waiting(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=4 << 10, backlog_bytes_max=1 << 20)
    await fill(tier.log, 500)
    request = tier._request(0)
    makers = Disk(), broker.threads, broker.child
    whole = await make_object(request, *makers)
    assert whole.size_bytes > 5 * request.collect_bytes
    assert not whole.more
    few = await make_object(replace(request, wal_bytes_max=12 << 10), *makers)
    assert 8 << 10 < few.size_bytes <= 12 << 10
    assert few.more
    small = await make_object(replace(request, object_bytes=1), *makers)
    assert small.size_bytes <= request.collect_bytes
    assert small.more


async def test_no_object_is_made_without_new_frames(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    made = await make_object(tier._request(1), Disk(), broker.threads, broker.child)
    assert (made.entry, made.links, made.size_bytes, made.more) == (None, (), 0, False)
    assert made.cursor.frame == tier.collected_frame


@pytest.mark.feature("T15")
async def test_a_killed_child_process_costs_one_attempt(
    world: World,
) -> None:
    broker, tier = await started(world, child_bytes_min=0)
    await fill(tier.log, 100)
    pid, attempt = await held_up(broker, tier)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ChildFailed):
        await attempt
    assert (tier.uploaded_frame, await world.keys()) == (0, [])
    await flush(tier)
    assert spans(tier.manifest.index)[0][0] == 0
    assert spans(tier.manifest.index)[-1][1] == 100
    assert await read_all(tier) == filled(range(100))


async def test_a_cancelled_round_leaves_no_shared_memory(
    world: World,
) -> None:
    broker, tier = await started(world, child_bytes_min=0)
    await fill(tier.log, 100)
    before = open_memories()
    pid, attempt = await held_up(broker, tier)
    assert open_memories() == before + 1
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert open_memories() == before
    os.kill(pid, signal.SIGCONT)
    await flush(tier)
    assert spans(tier.manifest.index)[-1][1] == 100
    assert broker.child.pid == pid
