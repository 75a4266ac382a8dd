"""A mirror copies its origin: sequences, times and holes, from where it was told to begin."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.topics.streams.rows import Rows, joined
from penstock.topics.streams.stream import Stream
from tests.eventually import eventually
from tests.unit.tiers.core import World
from tests.unit.topics.served import serve
from tests.unit.topics.streaming import Streaming, stream_all


@pytest_asyncio.fixture
async def made(world: World) -> AsyncIterator[Streaming]:
    streaming = await stream_all(world)
    yield streaming
    streaming.close()


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


async def origin(made: Streaming) -> Stream:
    stream = await made.create("origin", subjects=["o.>"])
    for number in range(6):
        await made.publish(f"o.{number % 2}", b"%d" % number)
    await stream.delete([2])
    return stream


@pytest.mark.feature("G08")
async def test_a_mirror_has_the_sequences_times_and_holes_of_its_origin(made: Streaming) -> None:
    source = await origin(made)
    mirror = await made.create("mirror", mirror={"name": "origin"})
    rows = await copied(mirror, 6)
    assert rows == await everything(source)
    assert list(rows.offsets) == [0, 1, 3, 4, 5]


async def test_a_mirror_goes_on_with_what_comes_later(made: Streaming) -> None:
    await origin(made)
    mirror = await made.create("mirror", mirror={"name": "origin"})
    await copied(mirror, 6)
    await made.publish("o.9", b"later")
    rows = await copied(mirror, 7)
    assert rows.payloads[-1] == b"later"
    copying = made.streams.mirror("mirror")
    assert copying is not None
    assert (copying.lag, copying.complete) == (0, True)


async def test_a_mirror_may_begin_later_or_want_some_subjects_only(made: Streaming) -> None:
    await origin(made)
    late = await made.create("late", mirror={"name": "origin", "opt_start_seq": 5})
    some = await made.create("some", mirror={"name": "origin", "filter_subject": "o.1"})
    assert list((await copied(late, 6)).offsets) == [4, 5]
    assert list((await copied(some, 6)).offsets) == [1, 3, 5]
    for name in ("late", "some"):
        copying = made.streams.mirror(name)
        assert copying is not None
        assert not copying.complete


async def test_a_mirror_waits_for_an_origin_that_is_not_there_yet(made: Streaming) -> None:
    mirror = await made.create("mirror", mirror={"name": "origin"})
    copying = made.streams.mirror("mirror")
    assert copying is not None
    assert (copying.origin, copying.active_ns) == (None, -1)
    await origin(made)
    assert (await copied(mirror, 6)).payloads[0] == b"0"


async def test_a_mirror_takes_nothing_else(made: Streaming) -> None:
    await origin(made)
    mirror = await made.create("mirror", mirror={"name": "origin"})
    await copied(mirror, 6)
    with pytest.raises(Exception, match="sealed"):
        await made.push(mirror, b"mine")
    assert mirror.next_offset == 6


async def test_a_mirror_that_was_copied_in_part_goes_on_after_a_restart(world: World) -> None:
    first = await stream_all(world)
    await origin(first)
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
