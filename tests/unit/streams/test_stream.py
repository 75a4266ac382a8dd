"""A stream reads its messages by sequence, by time and by subject."""

from __future__ import annotations

import pytest

from penstock.formats.frames import FRAME_HEADER_BYTES, Kind
from penstock.host.disk import Disk
from penstock.log import find_wal_files, scan_file
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import DataDamaged
from penstock.model.subjects import Filter
from penstock.streams.limits import limits_of
from penstock.streams.rows import NO_ROWS, Rows
from penstock.streams.stream import Stream
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from tests.broker.storage import World, flush
from tests.broker.streams import Streaming


async def filled(made: Streaming, count: int = 10) -> Stream:
    """Messages `0`, `1`..., of the subjects `s.0`, `s.1`, `s.2` in turn."""
    stream = await made.create("s", subjects=["s.>"])
    for number in range(count):
        await made.publish(f"s.{number % 3}", b"%d" % number)
    return stream


async def offsets(stream: Stream, wanted: list[int]) -> list[int]:
    rows = await stream.read_offsets(wanted)
    assert list(rows.payloads) == [b"%d" % offset for offset in rows.offsets]
    return list(rows.offsets)


async def test_a_stream_has_first_and_last_sequences(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"])
    assert (stream.first_seq, stream.last_seq, stream.messages) == (0, 0, 0)
    for number in range(5):
        await made.publish("s.a", b"%d" % number)
    assert (stream.first_seq, stream.last_seq, stream.messages) == (1, 5, 5)
    await stream.delete([0, 2])
    assert (stream.first_seq, stream.last_seq, stream.messages) == (2, 5, 3)
    assert stream.deleted() == [3]
    await stream.purge(5)
    assert (stream.first_seq, stream.last_seq, stream.messages) == (6, 5, 0)
    assert stream.deleted() == []


async def test_messages_are_read_from_the_first_live_one_on(made: Streaming) -> None:
    stream = await filled(made)
    await stream.delete([3, 4])
    rows = await stream.read(3, 3)
    assert isinstance(rows, Rows)
    assert list(rows.offsets) == [5, 6, 7]
    assert stream.peek(3, 3) == rows
    assert await stream.read(10, 1) == AtHead(stream.next_offset)
    await stream.purge(2)
    assert await stream.read(0, 1) == Gone(stream.first_offset)
    assert stream.peek(0, 1) == Gone(stream.first_offset)


async def test_a_live_message_in_memory_is_peeked(made: Streaming) -> None:
    stream = await filled(made)
    await stream.delete([4])
    await stream.purge(2)
    seen = [stream.peek_one(offset) for offset in range(11)]
    assert [rows and rows.payloads[0] for rows in seen] == [
        *[None, None, b"2", b"3", None],
        *[b"5", b"6", b"7", b"8", b"9", None],
    ]
    assert seen[5] == await stream.get(5)
    stream.opened.log._tail.clear()
    assert stream.peek_one(5) is None


async def test_all_rows_from_an_offset_on_are_read_in_parts(made: Streaming) -> None:
    stream = await filled(made)
    await stream.delete([5])
    await stream.purge(2)
    parts = [list(rows.offsets) async for rows in stream.rows_from(0, 3)]
    assert [offset for part in parts for offset in part] == [2, 3, 4, 6, 7, 8, 9]
    assert max(map(len, parts)) <= 3
    assert [rows async for rows in stream.rows_from(10, 3)] == []


@pytest.mark.parametrize("cold", [False, True])
async def test_live_messages_among_given_offsets_are_read(made: Streaming, cold: bool) -> None:
    stream = await filled(made)
    await stream.delete([4])
    await stream.purge(1)
    if cold:
        assert stream.opened.tier is not None
        await flush(stream.opened.tier)
        stream.opened.log._tail.clear()
        assert stream.peek(1, 1) is None
    assert await offsets(stream, [0, 1, 4, 5, 9]) == [1, 5, 9]
    assert await offsets(stream, [2, 3]) == [2, 3]
    assert await offsets(stream, [0]) == []
    assert await offsets(stream, [4]) == []
    assert await offsets(stream, [9, 10, 11]) == [9]
    assert await stream.read_offsets([]) == NO_ROWS
    assert list((await stream.get(7)).payloads) == [b"7"]
    assert (await stream.get(4)).count == 0


@pytest.mark.feature("T04")
async def test_read_intact_skips_damaged_messages(
    made: Streaming,
) -> None:
    stream = await filled(made)
    stream.opened.log._tail.clear()
    _flip(stream, 4)
    with pytest.raises(DataDamaged, match="offsets 4 to 4 are damaged"):
        await stream.read_offsets([1, 4, 7])
    with pytest.raises(DataDamaged):
        await stream.get(4)
    for wanted, intact in (
        ([1, 4, 7], [1, 7]),
        ([4], []),
        ([3, 4], [3]),
        ([4, 5], [5]),
        ([2, 3], [2, 3]),
        ([], []),
    ):
        assert list((await stream.read_intact(wanted)).offsets) == intact


def _flip(stream: Stream, offset: int) -> None:
    """One bit of the frame that has the message."""
    for path in find_wal_files(stream.opened.log.directory):
        data = bytearray(path.read_bytes())
        for item in scan_file(Disk(), path, None, 0).found:
            if item.header.kind == Kind.BATCH and item.header.first_offset == offset:
                data[item.position + FRAME_HEADER_BYTES + item.header.body_bytes - 1] ^= 1
        path.write_bytes(data)


async def test_messages_are_found_by_subject(made: Streaming) -> None:
    stream = await filled(made)
    every, one = Filter.parse(b"s.>"), Filter.parse(b"s.1")
    assert await stream.last(one) == 7
    assert await stream.next(one, 2) == 4
    assert await stream.matching(one, 2, 10) == [4, 7]
    assert await stream.count(one, 0, 10) == 3
    assert stream.count_all(0, 10) == 10
    assert [row[:2] for row in await stream.subjects(every)] == [
        (b"s.0", 4),
        (b"s.1", 3),
        (b"s.2", 3),
    ]
    await stream.delete([7])
    assert await stream.last(one) == 4
    assert stream.count_all(5, 100) == 4
    await stream.purge(5)
    assert await stream.last(one) is None
    assert [row[:2] for row in await stream.subjects(every, b"s.0")] == [(b"s.2", 2)]


async def test_observers_are_notified_of_appends_and_deletions(made: Streaming) -> None:
    stream, told = await filled(made), list[int]()
    stream.changed.add(lambda: told.append(stream.messages))
    await made.publish("s.x", b"10")
    assert told[0] == 11
    await stream.delete([0])
    assert told[-1] == 10
    await stream.purge(5)
    assert told[-1] == 6
    count = len(told)
    await stream.purge(5)
    assert len(told) == count


async def test_an_offset_is_found_by_time(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"])
    times = []
    for _ in range(3):
        times.append(world.clock.now_us())
        await made.publish("s")
        world.clock.pass_seconds(10)
    assert [await stream.offset_at(time) for time in times] == [0, 1, 2]
    assert await stream.offset_at(times[1] + 1) == 2
    assert await stream.offset_at(world.clock.now_us()) == 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (None, None, None, False)),
        ({"max_msgs": 5, "max_bytes": 6, "max_msgs_per_subject": 7}, (5, 6, 7, False)),
        ({"max_msgs": 5, "discard": "new"}, (5, None, None, True)),
    ],
)
def test_limits_are_those_of_the_configuration(
    fields: dict[str, int], expected: tuple[int | None, ...]
) -> None:
    config = normalised(StreamConfig(name="s", **fields))  # type: ignore[arg-type]
    limits = limits_of(config)
    assert (limits.messages, limits.bytes, limits.per_subject, limits.refuse_new) == expected
