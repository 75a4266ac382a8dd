"""What a durable group brings; that it is visible then is in test_log.py."""

from __future__ import annotations

import asyncio

from penstock.formats import bodies
from penstock.formats.bodies import Delete
from penstock.formats.frames import Kind
from penstock.log.arrived import take_in
from penstock.log.cache import TailCache
from penstock.log.group import Group, Record, seal
from penstock.log.state import LogState
from penstock.model.batch import Batch
from penstock.model.run import Run
from penstock.model.units import Microseconds, Nanoseconds, Offset, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.messages import P0, in_batch

P1, P2 = PartitionId(1), PartitionId(2)


class Noted:
    """An index that remembers what it was told."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def note(self, batch: Batch) -> None:
        self.batches.append(batch)


async def test_a_group_is_taken_in_by_everything_that_readers_look_at() -> None:
    group = Group()
    group.add(Run(b"s", [b"a", b"b", b"c"]), Offset(0), 6, 1 << 20)
    group.add(Run(b"s", [b"d"], partition=P1), Offset(0), 2, 1 << 20)
    gone = bodies.encode(Delete(2, b"", "purge"))
    group.record(Record(Kind.DELETE, P0, Offset(3), 0, gone))
    group.record(Record(Kind.DELETE, P2, Offset(5), 0, gone))
    stamped = group.stamp(Microseconds(7), Microseconds(0))
    frames = [seal(item, None, 1, number, 0, 0) for number, item in enumerate(stamped)]
    state, tail, index = LogState("t"), TailCache(1 << 20, Nanoseconds(1 << 60)).tail(), Noted()
    arrived = take_in(frames, None, state, tail, index, Nanoseconds(1))  # type: ignore[arg-type]
    assert arrived.partitions == {0, 1}
    assert arrived.changed == {0, 1, 2}
    assert arrived.messages == 4
    assert arrived.stored_bytes == sum(frame.header.frame_bytes for frame in frames)
    assert (state.next(P0), state.start(P0), state.next(P1)) == (3, 2, 1)
    assert [message.payload for batch in index.batches for message in in_batch(batch)] == [
        b"a",
        b"b",
        b"c",
        b"d",
    ]
    cached = tail.get(P0, Offset(2), 1 << 20)
    assert cached


async def test_who_listens_is_told_before_those_who_wait_for_the_disk(logs: OpenLogs) -> None:
    log = await logs.log()
    told: list[tuple[set[int], int, bool]] = []
    future = log.append(Run(b"s", [b"a", b"b"]))
    log.on_commit = lambda changed: told.append((changed, log.next_offset(P0), future.done()))
    await future
    assert told == [({0}, 2, False)]
    await log.delete(P0, [0])
    await log.append(Run(b"s", [b"c"], partition=P1))
    assert [changed for changed, *_ in told] == [{0}, {0}, {1}]
    log.settle(b"\x91\xa1x", 0)
    await log.writer.flush()
    assert len(told) == 3


async def test_who_listens_hears_of_every_run_at_once(logs: OpenLogs) -> None:
    log = await logs.log()
    told: list[tuple[int, int]] = []
    log.on_append = lambda run, first: told.append((run.count, first))
    futures = [log.append(Run(b"s", [b"x"] * count)) for count in (2, 3)]
    assert told == [(2, 0), (3, 2)]
    await asyncio.gather(*futures)
