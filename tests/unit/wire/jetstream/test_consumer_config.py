import json
from typing import Any

import msgspec
import pytest

from penstock.model.errors import FormatError
from penstock.wire.jetstream.consumer_config import (
    ConsumerConfig,
    CreateRequest,
    addressed,
    addressed_durable,
    decode,
    encode,
    listed,
    normalised,
    parse_create_request,
    shown,
)
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import ConsumerLimits

SECOND = 10**9
NO_LIMITS = ConsumerLimits()
DURABLE = (
    b'{"durable_name":"d1","name":"d1","deliver_policy":"all","ack_policy":"explicit",'
    b'"ack_wait":30000000000,"max_deliver":-1,"replay_policy":"instant","max_waiting":512,'
    b'"max_ack_pending":1000,"num_replicas":0,'
    b'"metadata":{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}}'
)
FULL: dict[str, Any] = {
    "durable_name": "c",
    "name": "c",
    "description": "d",
    "deliver_policy": "by_start_time",
    "opt_start_seq": 1,
    "opt_start_time": "2020-01-01T01:00:00.5+01:00",
    "ack_policy": "all",
    "ack_wait": 2,
    "max_deliver": 3,
    "backoff": [2, 4],
    "filter_subject": "f",
    "filter_subjects": ["g"],
    "replay_policy": "original",
    "rate_limit_bps": 5,
    "sample_freq": "50%",
    "max_waiting": 6,
    "max_ack_pending": 7,
    "flow_control": True,
    "headers_only": True,
    "max_batch": 8,
    "max_expires": 9,
    "max_bytes": 10,
    "deliver_subject": "to",
    "deliver_group": "g",
    "idle_heartbeat": 11,
    "inactive_threshold": 12,
    "num_replicas": 1,
    "mem_storage": True,
    "direct": True,
    "metadata": {"a": "b"},
    "pause_until": "2030-01-01T00:00:00Z",
    "priority_groups": ["A"],
    "priority_policy": "pinned_client",
    "priority_timeout": 13,
}


def _request(**config: Any) -> CreateRequest:
    return parse_create_request(json.dumps({"stream_name": "S", "config": config}).encode())


def _filled(limits: ConsumerLimits = NO_LIMITS, **config: Any) -> ConsumerConfig:
    return normalised(_request(**config).config, limits)


def test_a_durable_consumer_is_shown_with_every_default_in_order() -> None:
    request = _request(durable_name="d1", ack_policy="explicit")
    config = normalised(addressed(request, "S", "d1"), NO_LIMITS)
    assert msgspec.json.encode(shown(config)) == DURABLE
    assert listed(config)["metadata"] == {"_nats.req.level": "0"}


def test_every_field_is_parsed_and_shown_as_requested() -> None:
    config = _request(**FULL).config
    told = json.loads(encode(config))
    assert told == FULL
    assert list(told) == list(FULL)


def test_a_stored_configuration_decodes_to_an_equal_one() -> None:
    for config in (ConsumerConfig(), _request(**FULL).config, _filled(name="x")):
        assert decode(encode(config)) == config


@pytest.mark.parametrize("text", [b"", b"{", b'{"unknown":1}', b'{"name":5}'])
def test_a_text_that_was_never_stored_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match="not a stored configuration"):
        decode(text)


def test_normalising_twice_changes_nothing() -> None:
    for config in (_filled(), _filled(durable_name="d"), _filled(**FULL)):
        assert normalised(config, NO_LIMITS) == config


def test_a_request_names_its_action() -> None:
    body = b'{"stream_name":"S","config":{"name":"c"},"action":"update","pedantic":true}'
    assert parse_create_request(body) == CreateRequest(
        "S", ConsumerConfig(name="c"), "update", True
    )
    assert parse_create_request(b"") == CreateRequest()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"stream_name":"S","action":"zz"}', 'unknown consumer action: "zz"'),
        (b'{"stream_name":"S","action":null}', "unknown consumer action: null"),
        (b'{"bogus":1}', 'json: unknown field "bogus"'),
        (b'{"config":{"ack_policy":"zz"}}', 'can not unmarshal "\\"zz\\""'),
        (b'{"config":{"priority_policy":"zz"}}', 'unknown priority policy: "zz"'),
        (
            b'{"config":{"max_batch":"x"}}',
            (
                "json: cannot unmarshal string into Go struct field "
                "CreateConsumerRequest.config.max_batch of type int"
            ),
        ),
    ],
)
def test_a_request_that_does_not_fit_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_create_request(body)
    assert refused.value.description == f"invalid JSON: {complaint}"


def test_the_name_in_the_subject_wins() -> None:
    assert addressed(_request(name="other"), "S", "c").name == "c"
    assert addressed(_request(name="own"), "S").name == "own"
    assert addressed(_request(), "S").name == ""
    assert addressed(_request(filter_subject="a.b"), "S", "c", "a.b").filter_subject == "a.b"
    assert addressed_durable(_request(durable_name="c"), "S", "c").durable_name == "c"


@pytest.mark.parametrize(
    ("config", "place", "number"),
    [
        ({}, ("X", "c"), 10056),
        ({"durable_name": "d9"}, ("S", "d1"), 10017),
        ({"durable_name": "zz"}, ("S",), 10020),
        ({"filter_subject": "s.2"}, ("S", "c", "s.1"), 10131),
        ({}, ("S", "c", "s.1"), 10131),
        ({"filter_subjects": ["s.1"]}, ("S", "c", "s.1"), 10137),
    ],
)
def test_a_request_must_match_its_subject(
    config: dict[str, Any], place: tuple[str, ...], number: int
) -> None:
    with pytest.raises(ApiError) as refused:
        addressed(_request(**config), *place)
    assert refused.value.err_code == number


def test_the_subject_for_durable_consumers_wants_the_name_in_the_request() -> None:
    with pytest.raises(ApiError) as refused:
        addressed_durable(_request(name="c"), "S", "c")
    assert refused.value.err_code == 10018


EXPLICIT = {"ack_policy": "explicit"}


@pytest.mark.parametrize(
    ("asked", "filled"),
    [
        ({}, {"ack_wait": 0, "max_ack_pending": 0, "inactive_threshold": 5 * SECOND}),
        (EXPLICIT, {"ack_wait": 30 * SECOND, "max_ack_pending": 1000, "max_deliver": -1}),
        ({"ack_policy": "all"}, {"ack_wait": 30 * SECOND, "max_ack_pending": 1000}),
        ({"durable_name": "d"}, {"name": "d", "inactive_threshold": 0}),
        ({"max_waiting": -1}, {"max_waiting": 512}),
        ({"max_waiting": 0, "deliver_subject": "x"}, {"max_waiting": 0}),
        ({"max_batch": -1, "max_expires": -5, "max_bytes": -5}, {"max_batch": 0, "max_bytes": 0}),
        ({"max_deliver": -2}, {"max_deliver": -1}),
        ({"max_ack_pending": -7}, {"max_ack_pending": -1}),
        ({"backoff": [SECOND, 2 * SECOND], "ack_wait": 50}, {"ack_wait": SECOND}),
        ({"inactive_threshold": -1}, {"inactive_threshold": 5 * SECOND}),
        ({"deliver_policy": "undefined"}, {"deliver_policy": "all"}),
        (
            {"priority_policy": "pinned_client", "priority_groups": ["A"]},
            {"priority_timeout": 120 * SECOND},
        ),
        ({"priority_policy": "none"}, {"priority_policy": ""}),
        ({"pause_until": "0001-01-01T00:00:00Z"}, {"pause_until": ""}),
    ],
)
def test_missing_options_receive_defaults(asked: dict[str, Any], filled: dict[str, Any]) -> None:
    config = _filled(**asked)
    assert {name: getattr(config, name) for name in filled} == filled


@pytest.mark.parametrize(
    ("asked", "pending", "threshold"),
    [
        ({}, 50, 10 * SECOND),
        ({"durable_name": "d"}, 50, 10 * SECOND),
        ({"max_ack_pending": 5, "inactive_threshold": SECOND}, 5, SECOND),
    ],
)
def test_the_limits_of_the_stream_fill_in_first(
    asked: dict[str, Any], pending: int, threshold: int
) -> None:
    config = _filled(ConsumerLimits(10 * SECOND, 50), **asked)
    assert (config.max_ack_pending, config.inactive_threshold) == (pending, threshold)


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        ({}, "0"),
        ({"pause_until": "2030-01-01T00:00:00Z"}, "1"),
        ({"priority_policy": "overflow", "priority_groups": ["A"]}, "1"),
    ],
)
def test_the_level_that_a_consumer_needs_is_kept(asked: dict[str, Any], level: str) -> None:
    assert _filled(**asked).metadata == {"_nats.req.level": level}


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({}, "max_ack_pending must be set if it's configured in stream limits"),
        (
            {"max_ack_pending": 1},
            "inactive_threshold must be set if it's configured in stream limits",
        ),
        (
            {"max_ack_pending": 1, "inactive_threshold": 1, "backoff": [5], "ack_wait": 1},
            "first backoff value has to equal batch AckWait",
        ),
    ],
)
def test_a_pedantic_request_is_not_corrected(asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ApiError) as refused:
        normalised(_request(**asked).config, ConsumerLimits(1, 1), pedantic=True)
    assert refused.value.description == f"pedantic mode: {complaint}"


def test_filters_are_one_or_many_or_none() -> None:
    assert _request().config.filters == ()
    assert _request(filter_subject="a").config.filters == ("a",)
    assert _request(filter_subjects=["a", "b"]).config.filters == ("a", "b")
    assert _request(deliver_subject="x").config.push
    assert not _request().config.push
