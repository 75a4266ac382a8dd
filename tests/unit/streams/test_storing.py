"""What header fields ask for; what is answered then is in test_publisher.py.

How messages get into a log; what is answered then is in test_publisher.py.
"""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.run import Run
from penstock.model.units import Offset, OffsetRange
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.storing import NEVER, Expectations, Storing, expectations_of
from penstock.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from penstock.wire.parser import Publishes
from tests.unit.topics.streaming import Streaming, block

CONFIG = normalised(StreamConfig(name="s"))


def check(asked: Expectations, config: StreamConfig) -> None:
    asked.check_allowed(config)
    asked.check_rollup(config)


@pytest.mark.feature("P03")
def test_every_field_is_read_by_its_exact_name() -> None:
    told = block(
        "Nats-Msg-Id: id",
        "Nats-Expected-Stream: s",
        "Nats-Expected-Last-Sequence: 7",
        "Nats-Expected-Last-Subject-Sequence: 0",
        "Nats-Expected-Last-Subject-Sequence-Subject: a.>",
        "Nats-Expected-Last-Msg-Id: before",
        "Nats-Rollup: sub",
        "Nats-TTL: 5s",
        "Nats-Incr: +1",
    )
    assert expectations_of(told) == Expectations(
        b"id", b"s", 7, 0, b"a.>", b"before", b"sub", b"5s", b"", b"+1"
    )
    assert expectations_of(told.lower().replace(b"nats/1.0", b"NATS/1.0")) == Expectations()


@pytest.mark.feature("P03")
@pytest.mark.parametrize("text", ["x", "-1", "1.5", "9" * 30, "0x1"])
def test_a_number_that_cannot_be_read_fits_nothing(text: str) -> None:
    asked = expectations_of(block(f"Nats-Expected-Last-Sequence: {text}"))
    assert asked.last_sequence == NEVER


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("Nats-TTL: 1", errors.TTL_DISABLED),
        ("Nats-Rollup: sub", errors.ROLLUP_FAILED),
        ("Nats-Expected-Stream: other", errors.EXPECTED_STREAM),
        (
            "Nats-Expected-Last-Subject-Sequence-Subject: a",
            errors.EXPECTED_SUBJECT_SEQUENCE_MISSING,
        ),
    ],
)
def test_what_a_stream_does_not_do_is_refused(field: str, kind: errors.ErrorKind) -> None:
    asked = expectations_of(block(field))
    with pytest.raises(ApiError) as refused:
        check(asked, CONFIG)
    assert refused.value.err_code == kind.err_code


def test_a_stream_that_does_it_takes_it() -> None:
    config = normalised(StreamConfig(name="s", allow_msg_ttl=True, allow_rollup_hdrs=True))
    for field in ("Nats-TTL: 1", "Nats-TTL: never", "Nats-Rollup: sub", "Nats-Rollup: all"):
        check(expectations_of(block(field)), config)
    for field in ("Nats-TTL: 0", "Nats-TTL: x", "Nats-Rollup: none"):
        asked = expectations_of(block(field))
        with pytest.raises(ApiError):
            check(asked, config)


COUNTER = normalised(StreamConfig(name="s", allow_msg_counter=True))


def test_an_increment_is_read_where_counters_are() -> None:
    asked = expectations_of(block("Nats-Incr: -12"))
    assert asked.check_increment(COUNTER, b"") == -12
    assert expectations_of(block("Nats-Incr:")).check_increment(COUNTER, b"x") is None


@pytest.mark.parametrize(
    ("fields", "payload", "config", "kind"),
    [
        (["Nats-Incr: 1"], b"", CONFIG, errors.COUNTERS_DISABLED),
        (["Nats-Incr: x"], b"", CONFIG, errors.INCREMENT_INVALID),
        (["Nats-Incr: x"], b"x", COUNTER, errors.INCREMENT_INVALID),
        (["Nats-Incr: 1"], b"x", COUNTER, errors.INCREMENT_WITH_PAYLOAD),
        (["Nats-Incr: 1", "Nats-Rollup: sub"], b"", COUNTER, errors.INCREMENT_INVALID),
        (["Nats-Incr: 1", "Nats-Expected-Stream: s"], b"", COUNTER, errors.INCREMENT_INVALID),
        (["Nats-Incr: 1", "Nats-Expected-Last-Msg-Id: i"], b"", COUNTER, errors.INCREMENT_INVALID),
        (
            ["Nats-Incr: 1", "Nats-Expected-Last-Sequence: 0"],
            b"",
            COUNTER,
            errors.INCREMENT_INVALID,
        ),
        (
            ["Nats-Incr: 1", "Nats-Expected-Last-Subject-Sequence: 0"],
            b"",
            COUNTER,
            errors.INCREMENT_INVALID,
        ),
        (
            ["Nats-Incr: 1", "Nats-Expected-Last-Subject-Sequence-Subject: a"],
            b"",
            COUNTER,
            errors.INCREMENT_INVALID,
        ),
    ],
)
def test_an_increment_asks_for_nothing_else(
    fields: list[str], payload: bytes, config: StreamConfig, kind: errors.ErrorKind
) -> None:
    with pytest.raises(ApiError) as refused:
        expectations_of(block(*fields)).check_increment(config, payload)
    assert refused.value.err_code == kind.err_code


SECOND_US = 1_000_000


async def storing_of(made: Streaming) -> tuple[Storing, Stream, DuplicateWindow]:
    stream = await made.create("s", subjects=["s.>"])
    window = DuplicateWindow(SECOND_US, made.served.host.clock.now_us)
    return Storing(stream, window), stream, window


async def test_a_run_of_one_subject_has_it_once(made: Streaming) -> None:
    storing, _, _ = await storing_of(made)
    same = Publishes([b"s.a", b"s.a"], [b"", b""], None, [b"1", b"2"])
    assert storing.log_run(same) == Run(b"s.a", [b"1", b"2"])
    other = Publishes([b"s.a", b"s.b"], [b"", b""], [b"h", b""], [b"1", b"2"])
    assert storing.log_run(other) == Run([b"s.a", b"s.b"], [b"1", b"2"], [b"h", b""])


async def test_what_was_taken_can_be_found_once_it_is_settled(made: Streaming) -> None:
    storing, stream, _ = await storing_of(made)
    stream.opened.log.append(Run(b"s.a", [b"1", b"2"]))
    assert (storing.taken, stream.next_offset) == (2, 0)
    assert await storing.last_sequence(b"s.a") == 2
    assert stream.next_offset == 2
    assert await storing.last_sequence(b"s.b") == 0
    with pytest.raises(ApiError, match="missing sequence"):
        await storing.last_sequence(b"s..a")


async def test_ids_are_known_unless_their_messages_are_not_stored(made: Streaming) -> None:
    storing, stream, window = await storing_of(made)
    stored = stream.opened.log.append(Run(b"s.a", [b"1"]))
    storing.remember({b"i": 1}, stored)
    assert await storing.stored_as(b"i") == 1
    assert stored.done()
    assert await storing.stored_as(b"j") is None
    lost: asyncio.Future[OffsetRange] = asyncio.get_running_loop().create_future()
    storing.remember({b"j": 2, b"k": 3}, lost)
    lost.cancel()
    await asyncio.sleep(0)
    assert (window.find(b"j"), window.find(b"k"), window.find(b"i")) == (None, None, 1)


async def test_what_a_message_replaces(made: Streaming) -> None:
    storing, stream, _ = await storing_of(made)
    for subject in (b"s.a", b"s.b", b"s.a"):
        stream.opened.log.append(Run(subject, [b"x"]))
    assert await storing.replaced(b"s.a", None) == []
    assert await storing.replaced(b"s.a", b"all") == [(3, [], b"s.a")]
    assert await storing.replaced(b"s.a", b"sub") == [(0, [0, 2], b"s.a")]
    ended = await storing.replaced(b"s.a", b"sub", b"s.b")
    assert ended == [(0, [0, 2], b"s.a"), (0, [1], b"s.b")]


async def test_what_is_dropped_goes_with_what_was_appended_last(made: Streaming) -> None:
    storing, stream, _ = await storing_of(made)
    await made.push(stream, b"1", b"2", subject=b"s.a")
    await storing.make_room(1, 10)
    stored = stream.opened.log.append(Run(b"s.a", [b"3"]))
    storing.drop(Offset(0), [0], b"s.a")
    await stored
    assert stream.messages == 2
