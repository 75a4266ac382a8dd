"""What header fields ask for; what is answered then is in test_publisher.py."""

from __future__ import annotations

import pytest

from penstock.topics.streams.expectations import NEVER, Expectations, expectations_of
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from tests.unit.topics.streaming import block

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


@pytest.mark.parametrize(
    ("field", "ns"), [("A: b", None), ("Nats-TTL: never", None), ("Nats-TTL: 2", 2_000_000_000)]
)
def test_a_message_lives_for_ever_unless_it_says_how_long(field: str, ns: int | None) -> None:
    assert expectations_of(block(field)).ttl_ns == ns


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
