import json
from typing import Any

import msgspec
import pytest

from penstock.model.errors import FormatError
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import (
    Placement,
    StreamConfig,
    decode,
    encode,
    listed,
    normalised,
    parse_stream_config,
    shown,
    with_seal,
)

SECOND = 10**9
PLAIN = (
    b'{"name":"S1","subjects":["s1.>"],"retention":"limits","max_consumers":-1,"max_msgs":-1,'
    b'"max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old",'
    b'"storage":"file","num_replicas":1,"duplicate_window":120000000000,"compression":"none",'
    b'"allow_direct":false,"mirror_direct":false,"sealed":false,"deny_delete":false,'
    b'"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,'
    b'"metadata":{"_nats.level":"5","_nats.req.level":"0","_nats.ver":"2.15.1"}}'
)
FULL: dict[str, Any] = {
    "name": "F",
    "description": "d",
    "subjects": ["f", "g.*"],
    "retention": "workqueue",
    "max_consumers": 1,
    "max_msgs": 2,
    "max_bytes": 3,
    "max_age": SECOND,
    "max_msgs_per_subject": 4,
    "max_msg_size": 5,
    "discard": "new",
    "storage": "memory",
    "num_replicas": 1,
    "no_ack": True,
    "duplicate_window": SECOND // 2,
    "placement": {"cluster": "c", "tags": ["t"]},
    "mirror": {"name": "m", "opt_start_seq": 3, "filter_subject": "x"},
    "sources": [{"name": "s"}],
    "compression": "s2",
    "first_seq": 6,
    "subject_transform": {"src": "a", "dest": "b"},
    "republish": {"src": "a", "dest": "b", "headers_only": True},
    "allow_direct": True,
    "mirror_direct": True,
    "discard_new_per_subject": True,
    "sealed": False,
    "deny_delete": True,
    "deny_purge": True,
    "allow_rollup_hdrs": True,
    "consumer_limits": {"inactive_threshold": SECOND, "max_ack_pending": 7},
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 0,
    "allow_msg_counter": True,
    "allow_atomic": True,
    "allow_msg_schedules": True,
    "persist_mode": "async",
    "allow_batched": True,
    "metadata": {"a": "b"},
}


def _asked(**fields: Any) -> StreamConfig:
    body = json.dumps({"name": "S", **fields}).encode()
    config, pedantic = parse_stream_config(body, "S")
    return normalised(config, pedantic=pedantic)


def test_a_plain_stream_is_shown_with_every_default_in_order() -> None:
    config, pedantic = parse_stream_config(b'{"name":"S1","subjects":["s1.>"]}', "S1")
    assert not pedantic
    assert msgspec.json.encode(shown(normalised(config))) == PLAIN


def test_a_list_shows_only_the_level_that_a_stream_requires() -> None:
    assert listed(_asked())["metadata"] == {"_nats.req.level": "0"}


def test_every_field_is_parsed_and_shown_as_requested() -> None:
    config, pedantic = parse_stream_config(json.dumps(FULL | {"pedantic": True}).encode(), "F")
    assert pedantic
    told = json.loads(encode(config))
    assert told == {
        name: value for name, value in FULL.items() if name != "subject_delete_marker_ttl"
    }
    assert list(told) == [name for name in FULL if name != "subject_delete_marker_ttl"]


def test_a_stored_configuration_decodes_to_an_equal_one() -> None:
    config, _ = parse_stream_config(json.dumps(FULL).encode(), "F")
    for value in (config, normalised(config), _asked(), StreamConfig(name="x")):
        assert decode(encode(value)) == value


@pytest.mark.parametrize("text", [b"", b"{", b'{"unknown":1}', b'{"name":5}'])
def test_a_text_that_was_never_stored_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match="not a stored configuration"):
        decode(text)


def test_normalising_twice_changes_nothing() -> None:
    for config in (_asked(), _asked(max_age=SECOND, placement={}, sealed=True)):
        assert normalised(config) == config


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b'{"name":"X"}', b'{"name":""}'])
def test_the_name_must_be_the_one_in_the_subject(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_stream_config(body, "S")
    assert refused.value.err_code == 10056


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, False),
        ({"max_msgs_per_subject": 1}, True),
        ({"max_msgs_per_subject": 1, "allow_direct": None}, True),
        ({"max_msgs_per_subject": 1, "allow_direct": False}, False),
        ({"allow_direct": True}, True),
        ({"max_msgs_per_subject": -1}, False),
    ],
)
@pytest.mark.feature("G01")
def test_direct_gets_are_allowed_on_request_or_with_a_limit_per_subject(
    fields: dict[str, Any], allowed: bool
) -> None:
    assert _asked(**fields).allow_direct is allowed


@pytest.mark.parametrize(
    ("fields", "filled"),
    [
        ({}, {"subjects": ("S",), "duplicate_window": 120 * SECOND}),
        ({"max_msgs": 0, "max_bytes": -5, "max_consumers": 0}, {"max_msgs": -1, "max_bytes": -1}),
        ({"max_age": SECOND}, {"duplicate_window": SECOND}),
        ({"max_age": 3600 * SECOND}, {"duplicate_window": 120 * SECOND}),
        ({"duplicate_window": SECOND}, {"duplicate_window": SECOND}),
        ({"num_replicas": 0}, {"num_replicas": 1}),
        ({"mirror": {"name": "o"}}, {"subjects": (), "duplicate_window": 0}),
        ({"placement": {}}, {"placement": None}),
        ({"placement": {"cluster": "c"}}, {"placement": Placement("c")}),
        ({"persist_mode": "default"}, {"persist_mode": ""}),
        (
            {"subject_delete_marker_ttl": SECOND, "deny_purge": True},
            {"deny_purge": False, "allow_rollup_hdrs": True, "allow_msg_ttl": True},
        ),
        (
            {"allow_msg_schedules": True, "deny_purge": True},
            {"deny_purge": False, "allow_rollup_hdrs": True, "allow_msg_ttl": False},
        ),
    ],
)
def test_missing_options_receive_defaults(fields: dict[str, Any], filled: dict[str, Any]) -> None:
    config = _asked(**fields)
    assert {name: getattr(config, name) for name in filled} == filled


def test_a_seal_denies_deletes_and_purges_and_ends_roll_ups_and_ages() -> None:
    open_ = _asked(allow_rollup_hdrs=True, max_age=60 * SECOND)
    assert with_seal(open_) == open_
    sealed = msgspec.structs.replace(open_, sealed=True)
    assert with_seal(sealed) == msgspec.structs.replace(
        sealed,
        discard="new",
        max_age=0,
        deny_delete=True,
        deny_purge=True,
        allow_rollup_hdrs=False,
    )


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({}, "0"),
        ({"allow_msg_ttl": True}, "1"),
        ({"subject_delete_marker_ttl": SECOND}, "1"),
        ({"allow_atomic": True}, "2"),
        ({"persist_mode": "async"}, "2"),
        ({"allow_batched": True}, "4"),
        ({"metadata": {"_nats.req.level": "9"}}, "0"),
    ],
)
def test_the_level_that_a_stream_needs_is_kept(fields: dict[str, Any], level: str) -> None:
    assert _asked(**fields).metadata["_nats.req.level"] == level


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"max_msgs": -5}, "max_msgs must be set to -1"),
        ({"max_msg_size": -2}, "max_msg_size must be set to -1"),
        ({"max_age": SECOND}, "duplicate window cannot be bigger than max age"),
    ],
)
def test_a_pedantic_request_is_not_corrected(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ApiError) as refused:
        _asked(pedantic=True, **fields)
    assert refused.value.document() == {
        "code": 400,
        "err_code": 10157,
        "description": f"pedantic mode: {complaint}",
    }
    _asked(pedantic=True, max_msgs=-1, max_bytes=0)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"name":"S","foo_bar":1}', 'json: unknown field "foo_bar"'),
        (
            b'{"name":"S","max_msgs":"a"}',
            (
                "json: cannot unmarshal string into Go struct field "
                "StreamConfigRequest.max_msgs of type int64"
            ),
        ),
        (b'{"name":"S","retention":"foo"}', 'can not unmarshal "\\"foo\\""'),
        (b'{"name":"S","retention":null}', 'can not unmarshal "null"'),
        (b'{"name":"S","compression":"zz"}', "unknown compression algorithm"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_stream_config(body, "S")
    assert refused.value.description == f"invalid JSON: {complaint}"
