"""What header fields request; how such publishes are answered is in test_publisher.py."""

from __future__ import annotations

import pytest

from penstock.streams.publish_fields import NEVER, PublishFields, publish_fields
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from tests.broker.streams import block

CONFIG = normalised(StreamConfig(name="s"))


def check(parsed: PublishFields, config: StreamConfig) -> None:
    parsed.check_allowed(config)
    parsed.check_rollup(config)


@pytest.mark.feature("P03")
def test_every_field_is_read_by_its_exact_name() -> None:
    text = block(
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
    assert publish_fields(text) == PublishFields(
        b"id", b"s", 7, 0, b"a.>", b"before", b"sub", b"5s", b"", b"+1"
    )
    assert publish_fields(text.lower().replace(b"nats/1.0", b"NATS/1.0")) == PublishFields()


@pytest.mark.feature("P03")
@pytest.mark.parametrize("text", ["x", "-1", "1.5", "9" * 30, "0x1"])
def test_an_invalid_number_never_matches(text: str) -> None:
    parsed = publish_fields(block(f"Nats-Expected-Last-Sequence: {text}"))
    assert parsed.last_sequence == NEVER


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
def test_requests_that_a_stream_does_not_support_are_refused(
    field: str, kind: errors.ErrorKind
) -> None:
    parsed = publish_fields(block(field))
    with pytest.raises(ApiError) as refused:
        check(parsed, CONFIG)
    assert refused.value.err_code == kind.err_code


def test_requests_that_a_stream_supports_are_accepted() -> None:
    config = normalised(StreamConfig(name="s", allow_msg_ttl=True, allow_rollup_hdrs=True))
    for field in ("Nats-TTL: 1", "Nats-TTL: never", "Nats-Rollup: sub", "Nats-Rollup: all"):
        check(publish_fields(block(field)), config)
    for field in ("Nats-TTL: 0", "Nats-TTL: x", "Nats-Rollup: none"):
        parsed = publish_fields(block(field))
        with pytest.raises(ApiError):
            check(parsed, config)


COUNTER = normalised(StreamConfig(name="s", allow_msg_counter=True))


def test_an_increment_is_parsed_in_a_counter_stream() -> None:
    parsed = publish_fields(block("Nats-Incr: -12"))
    assert parsed.check_increment(COUNTER, b"") == -12
    assert publish_fields(block("Nats-Incr:")).check_increment(COUNTER, b"x") is None


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
def test_an_increment_excludes_other_requests(
    fields: list[str], payload: bytes, config: StreamConfig, kind: errors.ErrorKind
) -> None:
    with pytest.raises(ApiError) as refused:
        publish_fields(block(*fields)).check_increment(config, payload)
    assert refused.value.err_code == kind.err_code


def test_the_first_value_of_a_repeated_field_counts() -> None:
    assert publish_fields(block("Nats-Msg-Id: a", "Nats-Msg-Id: b")).message_id == b"a"
    assert publish_fields(block("Nats-Msg-Id:", "Nats-Msg-Id: b")).message_id == b""
