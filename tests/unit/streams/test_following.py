"""A follower passes every message on once; a mirror copies its origin.

The copy has the sequences, timestamps and gaps of the origin, from the configured start on.
"""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from penstock.model.errors import FormatError
from penstock.streams.following import Follower
from penstock.streams.rows import Rows, joined
from penstock.streams.stream import Stream
from tests.broker.storage import World
from tests.broker.streams import Streaming, stream_all
from tests.broker.topics import serve
from tests.eventually import eventually
from tests.unit.streams.sourcing import origin


class Reader:
    """Takes what a follower reads; the first `refusals` batches are refused."""

    def __init__(self, made: Streaming, refusals: int = 0) -> None:
        self.got: list[bytes] = []
        self.asked: list[int] = []
        self._refusals = refusals
        clock = made.served.broker.world.clock
        self.follower = Follower("s", "o", made.streams.get, clock, self._begin, self._store)
        self.follower.start()

    async def _begin(self, origin: Stream) -> int:
        return self.follower.position or 0

    async def _store(self, origin: Stream, rows: Rows) -> None:
        self.asked.append(rows.count)
        if self._refusals:
            self._refusals -= 1
            raise FormatError("not now")
        self.got += rows.payloads

    async def has(self, *expected: bytes) -> None:
        async def there() -> bool:
            return self.got == list(expected)

        await eventually(there)


async def test_a_follower_stores_existing_and_later_messages_once(made: Streaming) -> None:
    reader = Reader(made)
    assert (reader.follower.origin, reader.follower.active_ns) == (None, -1)
    await origin(made, count=3)
    await reader.has(b"0", b"1", b"2")
    await made.publish("o.1", b"later")
    await reader.has(b"0", b"1", b"2", b"later")
    assert reader.follower.position == 4
    reader.follower.stop()


async def test_a_follower_retries_failed_messages_one_at_a_time(
    made: Streaming,
) -> None:
    await origin(made, count=3)
    with structlog.testing.capture_logs() as logs:
        reader = Reader(made, refusals=2)
        await reader.has(b"0", b"1", b"2")
    assert reader.asked == [3, 1, 1, 2]
    failures: list[Any] = [log for log in logs if log["event"] == "copy_failed"]
    assert [failure["reason"] for failure in failures] == ["not now"]
    reader.follower.stop()


async def test_a_follower_skips_deleted_messages(made: Streaming) -> None:
    stream = await origin(made, count=4)
    await stream.delete([1])
    reader = Reader(made)
    await reader.has(b"0", b"2", b"3")
    reader.follower.stop()


async def copied(stream: Stream, last: int) -> Rows:
    """All that is in a mirror once it has come so far."""

    async def there() -> bool:
        return stream.next_offset >= last

    await eventually(there)
    return await everything(stream)


async def everything(stream: Stream) -> Rows:
    parts: list[Rows] = []
    offset: int = 0
    while isinstance(rows := await stream.read(max(offset, stream.first_offset), 1000), Rows):
        parts.append(rows)
        offset = rows.offsets[-1] + 1
    return joined(parts)


async def mirror_origin(made: Streaming) -> Stream:
    stream = await made.create("origin", subjects=["o.>"])
    for number in range(6):
        await made.publish(f"o.{number % 2}", b"%d" % number)
    await stream.delete([2])
    return stream


@pytest.mark.feature("G08")
async def test_a_mirror_has_the_sequences_timestamps_and_gaps_of_its_origin(
    made: Streaming,
) -> None:
    source = await mirror_origin(made)
    mirror = await made.create("mirror", mirror={"name": "origin"})
    rows = await copied(mirror, 6)
    assert rows == await everything(source)
    assert list(rows.offsets) == [0, 1, 3, 4, 5]


async def test_a_mirror_copies_later_messages(made: Streaming) -> None:
    await mirror_origin(made)
    mirror = await made.create("mirror", mirror={"name": "origin"})
    await copied(mirror, 6)
    await made.publish("o.9", b"later")
    rows = await copied(mirror, 7)
    assert rows.payloads[-1] == b"later"
    copying = made.streams.mirror("mirror")
    assert copying is not None
    assert (copying.lag, copying.complete) == (0, True)


async def test_a_mirror_may_begin_later_or_filter_subjects(made: Streaming) -> None:
    await mirror_origin(made)
    late = await made.create("late", mirror={"name": "origin", "opt_start_seq": 5})
    some = await made.create("some", mirror={"name": "origin", "filter_subject": "o.1"})
    assert list((await copied(late, 6)).offsets) == [4, 5]
    assert list((await copied(some, 6)).offsets) == [1, 3, 5]
    for name in ("late", "some"):
        copying = made.streams.mirror(name)
        assert copying is not None
        assert not copying.complete


async def test_a_mirror_waits_for_its_origin_to_exist(made: Streaming) -> None:
    mirror = await made.create("mirror", mirror={"name": "origin"})
    copying = made.streams.mirror("mirror")
    assert copying is not None
    assert (copying.origin, copying.active_ns) == (None, -1)
    await mirror_origin(made)
    assert (await copied(mirror, 6)).payloads[0] == b"0"


async def test_a_mirror_refuses_publishes(made: Streaming) -> None:
    await mirror_origin(made)
    mirror = await made.create("mirror", mirror={"name": "origin"})
    await copied(mirror, 6)
    with pytest.raises(Exception, match="sealed"):
        await made.push(mirror, b"mine")
    assert mirror.next_offset == 6


async def test_a_mirror_continues_after_a_restart(world: World) -> None:
    first = await stream_all(world)
    await mirror_origin(first)
    mirror = await first.create("mirror", mirror={"name": "origin"})
    await copied(mirror, 6)
    first.close()
    directory = await first.served.crash()
    second = Streaming(await serve(world, directory))
    await second.publish("o.7", b"after")
    found = second.streams.get("mirror")
    assert found is not None
    assert list((await copied(found, 7)).offsets) == [0, 1, 3, 4, 5, 6]
    second.close()


async def test_a_mirror_begins_at_the_first_sequence_of_its_origin(made: Streaming) -> None:
    source = await made.create("origin", subjects=["o"], first_seq=1 << 61)
    await made.publish("o", b"x")
    mirror = await made.create("mirror", mirror={"name": "origin"})
    assert await copied(mirror, 1 << 61) == await everything(source)
    assert (mirror.first_seq, mirror.messages) == (1 << 61, 1)


async def test_a_mirror_reports_a_gap_that_is_too_wide(
    made: Streaming,
) -> None:
    source = await made.create("origin", subjects=["o"])
    await made.publish("o", b"x")
    mirror = await made.create("mirror", mirror={"name": "origin"})
    await copied(mirror, 1)
    with capture_logs() as logs:
        await source.purge(1 << 61, past_end=True)
        await made.publish("o", b"y")

        async def said() -> bool:
            return any("at most 4294967296" in log.get("reason", "") for log in logs)

        await eventually(said)
    assert (mirror.last_seq, mirror.messages) == (1, 1)
