"""Parts of a stream that scan its older messages at the same time share their reads."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.batch import AtHead
from penstock.streams import shared_scan
from penstock.streams.shared_scan import SHARED_READS_MAX, SharedScan
from penstock.streams.stream import Stream
from penstock.topics import OpenPartition
from tests.broker.streams import Streaming, block, start_again
from tests.eventually import eventually


@pytest.fixture
def read_offsets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of all messages that are read from partitions."""
    read, found = OpenPartition.read, list[int]()

    async def reading(partition: OpenPartition, offset: int, bytes_max: int = 1 << 20) -> object:
        result = await read(partition, offset, bytes_max)
        if isinstance(result, list):
            found.extend(int(offset) for batch in result for offset in batch.offsets())
        return result

    monkeypatch.setattr(OpenPartition, "read", reading)
    return found


async def stream_of(made: Streaming, **config: object) -> Stream:
    stream = await made.create("s", subjects=["s"], **config)
    for number in range(6):
        await made.publish("s", b"%d" % number, block("Nats-TTL: 1h") if config else b"")
    return stream


async def scan_all(scan: SharedScan) -> list[int]:
    found: list[int] = []
    offset = 0
    while isinstance(result := await scan.read(offset, 1), list):
        found += [int(each) for batch in result for each in batch.offsets()]
        offset = result[-1].next_offset
    assert isinstance(result, AtHead)
    return found


async def test_an_opening_reads_each_message_once_for_sizes_ttls_and_schedules(
    made: Streaming, read_offsets: list[int]
) -> None:
    needs = {"allow_msg_ttl": True, "allow_msg_schedules": True, "max_bytes": 1 << 20}
    await stream_of(made, duplicate_window=0, **needs)
    read_offsets.clear()
    made, stream = await start_again(made, "s")
    served = made.streams._served["s"]

    async def scanned() -> bool:
        positions = {served.schedules._position, served.expiry._ttls._position}
        return positions == {stream.next_offset} and not stream.counts.unmeasured

    await eventually(scanned)
    assert sorted(read_offsets) == list(range(6))
    made.close()


async def test_scans_at_the_same_time_read_once_and_later_ones_anew(
    made: Streaming, read_offsets: list[int]
) -> None:
    stream = await stream_of(made)
    read_offsets.clear()
    scans = await asyncio.gather(*(scan_all(stream.scan) for _ in range(3)))
    assert scans == [list(range(6))] * 3
    assert sorted(read_offsets) == list(range(6))
    await made.publish("s", b"later")
    assert await scan_all(stream.scan) == list(range(7))


async def test_few_reads_are_cached_and_for_a_short_time(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_scan, "CACHE_SECONDS", 0.01)
    stream = await stream_of(made)
    for offset in range(6):
        await stream.scan.read(offset, 1)
        assert len(stream.scan._reads) <= SHARED_READS_MAX

    async def released() -> bool:
        return not stream.scan._reads

    await eventually(released)


async def test_a_scan_that_fails_fails_for_all_and_is_repeated(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await stream_of(made)

    async def failing(offset: int, bytes_max: int) -> object:
        await asyncio.sleep(0)
        raise OSError("unreadable")

    with monkeypatch.context() as patch:
        patch.setattr(OpenPartition, "read", lambda _, *range_: failing(*range_))
        results = await asyncio.gather(
            *(stream.scan.read(0, 1) for _ in range(2)), return_exceptions=True
        )
    assert [str(result) for result in results] == ["unreadable"] * 2
    assert isinstance(await stream.scan.read(0, 1), list)
