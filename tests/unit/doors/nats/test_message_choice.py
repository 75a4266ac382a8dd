import pytest

from penstock.doors.nats.message_choice import chosen_offset, start_offset, subject_filter
from penstock.wire.jetstream.times import time_text
from tests.unit.doors.nats.streaming import Streaming


def test_what_no_subject_can_match_is_no_filter() -> None:
    assert subject_filter("a..b") is None
    assert subject_filter("\ud800") is None
    found = subject_filter("a.*")
    assert found is not None
    assert found.matches(b"a.b")


async def _timed(streaming: Streaming) -> list[int]:
    """Three messages, each a millisecond after the last; their times."""
    await streaming.asker.create("S", subjects=["s"])
    clock = streaming.served.broker.world.clock
    times: list[int] = []
    for payload in (b"a", b"b", b"c"):
        clock.us += 1000
        await streaming.asker.publish(b"s", payload)
        times.append((await streaming.stream("S").get(len(times))).timestamps[0])
    return times


async def test_a_time_means_the_first_message_that_is_not_older(streaming: Streaming) -> None:
    times = await _timed(streaming)
    assert times == sorted(set(times))
    stream = streaming.stream("S")
    second = times[1] * 1000
    assert await start_offset(stream, 0, time_text(second)) == 1
    assert await start_offset(stream, 0, time_text(second - 1)) == 1
    assert await start_offset(stream, 0, time_text(second + 1)) == 2
    assert await start_offset(stream, 0, time_text(times[2] * 1000 + 1)) == 3
    assert await start_offset(stream, 2, "") == 1
    assert await start_offset(stream, 0, "") == 0


@pytest.mark.parametrize(
    ("seq", "last_by", "next_by", "found"),
    [
        (2, "", "", 1),
        (99, "", "", 98),
        (0, "s", "", 2),
        (0, "x", "", None),
        (0, "a..b", "", None),
        (2, "", "s", 1),
        (4, "", "s", None),
        (0, "", "a..b", None),
    ],
)
async def test_the_message_that_is_meant(
    streaming: Streaming, seq: int, last_by: str, next_by: str, found: int | None
) -> None:
    await _timed(streaming)
    stream = streaming.stream("S")
    assert found == await chosen_offset(
        stream, seq=seq, last_by=last_by, next_by=next_by, start_time=""
    )
