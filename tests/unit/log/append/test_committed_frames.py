"""The changes that a durable group makes; test_log.py tests that they are visible."""

from __future__ import annotations

import asyncio

from penstock.formats import bodies
from penstock.formats.bodies import DeleteBody
from penstock.formats.frames import Kind
from penstock.log import LogObserver
from penstock.log.append.committed_frames import apply_frames
from penstock.log.append.group import Group, Record, seal
from penstock.log.shared.tail_cache import TailCache
from penstock.log.state import LogState
from penstock.model.batch import Batch
from penstock.model.run import Run
from penstock.model.units import Microseconds, Nanoseconds, Offset, PartitionId
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.messages import P0, in_batch
from tests.unit.log.observer import Recorder

P1, P2 = PartitionId(1), PartitionId(2)


class Noted:
    """An index that records its calls."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def note(self, batch: Batch) -> None:
        self.batches.append(batch)


async def test_a_group_is_taken_in_by_everything_that_readers_look_at() -> None:
    group = Group()
    group.add(Run(b"s", [b"a", b"b", b"c"]), Offset(0), 6, 1 << 20)
    group.add(Run(b"s", [b"d"], partition=P1), Offset(0), 2, 1 << 20)
    gone = bodies.encode(DeleteBody(2, b"", "purge"))
    group.record(Record(Kind.DELETE, P0, Offset(3), 0, gone))
    group.record(Record(Kind.DELETE, P2, Offset(5), 0, gone))
    stamped = group.stamp(Microseconds(7), Microseconds(0))
    frames = [seal(item, None, 1, number, 0, 0) for number, item in enumerate(stamped)]
    state, tail, index = LogState("t"), TailCache(1 << 20, Nanoseconds(1 << 60)).tail(), Noted()
    summary = apply_frames(frames, None, state, tail, index, Nanoseconds(1))  # type: ignore[arg-type]
    assert summary.partitions == {0, 1}
    assert summary.changed == {0, 1, 2}
    assert summary.messages == 4
    assert summary.stored_bytes == sum(frame.header.frame_bytes for frame in frames)
    assert (state.next(P0), state.start(P0), state.next(P1)) == (3, 2, 1)
    assert [message.payload for batch in index.batches for message in in_batch(batch)] == [
        b"a",
        b"b",
        b"c",
        b"d",
    ]
    cached = tail.get(P0, Offset(2), 1 << 20)
    assert cached


async def test_an_observer_receives_a_commit_before_its_appends_complete(logs: OpenLogs) -> None:
    log = await logs.log()
    future = log.append(Run(b"s", [b"a", b"b"]))
    observer = Recorder(lambda changed: (changed, log.next_offset(P0), future.done()))
    log.observe(observer)
    await future
    assert observer.commits == [({0}, 2, False)]


async def test_observers_receive_the_partitions_that_a_group_changed(logs: OpenLogs) -> None:
    log, observer = await logs.log(), Recorder()
    cancel = log.observe(observer)
    await log.append(Run(b"s", [b"a", b"b"]))
    await log.delete(P0, [0])
    await log.append(Run(b"s", [b"c"], partition=P1))
    assert observer.commits == [{0}, {0}, {1}]
    log.settle(b"\x91\xa1x", 0)
    await log.writer.flush()
    assert (len(observer.commits), observer.groups) == (3, 4)
    cancel()
    cancel()
    await log.append(Run(b"s", [b"c"]))
    assert (len(observer.commits), observer.groups) == (3, 4)


async def test_observers_receive_every_run_when_it_is_appended(logs: OpenLogs) -> None:
    log, observer = await logs.log(), Recorder()
    log.observe(observer)
    log.observe(LogObserver())
    futures = [log.append(Run(b"s", [b"x"] * count)) for count in (2, 3)]
    assert observer.runs == [(2, 0), (3, 2)]
    await asyncio.gather(*futures)
