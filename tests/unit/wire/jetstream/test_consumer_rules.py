import json
from typing import Any

import pytest

from penstock.wire.jetstream.consumer_config import (
    ConsumerConfig,
    normalised,
    parse_create_request,
)
from penstock.wire.jetstream.consumer_rules import check, check_update, check_workqueue_place
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import ConsumerLimits, StreamConfig

SECOND = 10**9
STREAM = StreamConfig(name="T", subjects=("t.>",))
WORKQUEUE = StreamConfig(name="W", subjects=("w.>",), retention="workqueue")
LIMITED = StreamConfig(name="L", subjects=("l.>",), consumer_limits=ConsumerLimits(10 * SECOND, 50))
TIME = "2020-01-01T00:00:00Z"


def _config(stream: StreamConfig = STREAM, **config: Any) -> ConsumerConfig:
    config = {"name": "c", "ack_policy": "explicit", **config}
    body = json.dumps({"stream_name": stream.name, "config": config}).encode()
    return normalised(parse_create_request(body).config, stream.consumer_limits)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"ack_policy": "none", "max_ack_pending": 10},
        {"deliver_subject": "to", "flow_control": True, "idle_heartbeat": SECOND},
        {"deliver_subject": "to", "deliver_group": "g", "rate_limit_bps": 5},
        {"name": "a" * 255, "description": "x" * 4096, "backoff": [0]},
        {"deliver_subject": "to", "idle_heartbeat": SECOND // 10},
        {"max_batch": 5, "max_expires": 1_000_000, "max_bytes": 1000},
        {"backoff": [SECOND, 2 * SECOND], "max_deliver": 2},
        {"filter_subject": "elsewhere"},
        {"filter_subjects": ["t.a", "t.b"]},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
        {"deliver_policy": "by_start_time", "opt_start_time": TIME},
        {"deliver_policy": "last_per_subject", "filter_subjects": ["t.a", "t.b"]},
        {"sample_freq": "50%"},
        {"num_replicas": 1, "mem_storage": True, "headers_only": True},
        {"priority_groups": ["A", "B"], "priority_policy": "overflow"},
    ],
    ids=str,
)
def test_valid_consumer_configurations_are_accepted(config: dict[str, Any]) -> None:
    check(_config(**config), STREAM)


START = "consumer delivery policy is deliver "


@pytest.mark.parametrize(
    ("config", "code", "number", "sentence"),
    [
        ({"name": "a*"}, 500, 10052, "consumer name can not contain '.', '*', '>', '\\', '/'"),
        ({"name": "a/b"}, 400, 10127, "Consumer name can not contain path separators"),
        ({"name": "a" * 256}, 400, 10102, "consumer name is too long, maximum allowed is 255"),
        (
            {"description": "x" * 4097},
            400,
            10107,
            "consumer description is too long, maximum allowed is 4096",
        ),
        (
            {"metadata": {"a": "x" * 131072}},
            400,
            10135,
            "consumer metadata exceeds maximum size of 128KB",
        ),
        ({"num_replicas": -1}, 400, 10133, "replicas count cannot be negative"),
        ({"num_replicas": 3}, 500, 10074, "replicas > 1 not supported in non-clustered mode"),
        ({"deliver_subject": "a.*"}, 400, 10079, "consumer deliver subject has wildcards"),
        ({"deliver_subject": "a..b"}, 400, 10112, "invalid push consumer deliver subject"),
        ({"deliver_subject": "t.x"}, 400, 10081, "consumer deliver subject forms a cycle"),
        (
            {"deliver_subject": "x", "max_waiting": 5},
            400,
            10080,
            "consumer in push mode can not set max waiting",
        ),
        (
            {"deliver_subject": "x", "idle_heartbeat": 10},
            400,
            10083,
            "consumer idle heartbeat needs to be >= 100ms",
        ),
        (
            {"deliver_subject": "x", "flow_control": True},
            400,
            10108,
            "consumer with flow control also needs heartbeats",
        ),
        (
            {"deliver_subject": "x", "priority_groups": ["A"], "priority_policy": "overflow"},
            400,
            10178,
            "priority groups can not be used with push consumers",
        ),
        (
            {"deliver_subject": "x", "direct": True},
            500,
            10012,
            "direct consumers are not supported by this server",
        ),
        (
            {"rate_limit_bps": 100},
            400,
            10086,
            "consumer in pull mode can not have rate limit set",
        ),
        (
            {"idle_heartbeat": SECOND},
            400,
            10088,
            "consumer idle heartbeat requires a push based consumer",
        ),
        (
            {"flow_control": True},
            400,
            10089,
            "consumer flow control requires a push based consumer",
        ),
        ({"direct": True}, 400, 10090, "consumer direct requires a push based consumer"),
        (
            {"max_expires": 10},
            400,
            10115,
            "consumer max request expires needs to be >= 1ms",
        ),
        (
            {"ack_policy": "flow_control"},
            500,
            10012,
            "ack policy flow_control is not supported by this server",
        ),
        (
            {"replay_policy": "original"},
            500,
            10012,
            "replay policy original is not supported by this server",
        ),
        ({"ack_wait": -1}, 400, 10183, "consumer ack wait needs to be positive"),
        ({"backoff": [SECOND, -1]}, 400, 10184, "consumer backoff needs to be positive"),
        (
            {"backoff": [SECOND, SECOND], "max_deliver": 1},
            400,
            10116,
            "max deliver is required to be > length of backoff values",
        ),
        (
            {"deliver_policy": "by_start_sequence"},
            400,
            10094,
            START + "by start sequence, but optional start sequence is not set",
        ),
        (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 3, "opt_start_time": TIME},
            400,
            10094,
            START + "by start sequence, but optional start time is also set",
        ),
        (
            {"deliver_policy": "by_start_time", "opt_start_seq": 3},
            400,
            10094,
            START + "by start time, but optional start time is not set",
        ),
        (
            {"opt_start_seq": 5},
            400,
            10094,
            START + "all, but optional start sequence is also set",
        ),
        (
            {"deliver_policy": "new", "opt_start_time": TIME},
            400,
            10094,
            START + "new, but optional start time is also set",
        ),
        (
            {"deliver_policy": "last_per_subject"},
            400,
            10094,
            START + "last per subject, but optional filter subject is not set",
        ),
        (
            {"filter_subject": "a", "filter_subjects": ["b"]},
            400,
            10136,
            "consumer cannot have both FilterSubject and FilterSubjects specified",
        ),
        (
            {"filter_subjects": ["a", ""]},
            400,
            10139,
            "consumer filter in FilterSubjects cannot be empty",
        ),
        ({"filter_subject": "a..b"}, 500, 10052, "invalid subject"),
        (
            {"filter_subjects": ["t.2", "t.*"]},
            400,
            10138,
            "consumer subject filters cannot overlap",
        ),
        (
            {"sample_freq": "a"},
            400,
            10095,
            (
                "failed to parse consumer sampling configuration: "
                'strconv.Atoi: parsing "a": invalid syntax'
            ),
        ),
        (
            {"sample_freq": "9" * 5000 + "%"},
            400,
            10095,
            (
                "failed to parse consumer sampling configuration: "
                f'strconv.Atoi: parsing "{"9" * 18}": value out of range'
            ),
        ),
        (
            {"priority_groups": ["A"]},
            400,
            10196,
            "consumer can not have priority groups when policy is none",
        ),
        (
            {"priority_timeout": SECOND},
            400,
            10197,
            "PinnedTTL cannot be set when PriorityPolicy is none",
        ),
        (
            {"priority_policy": "overflow"},
            400,
            10159,
            "Setting PriorityPolicy requires at least one PriorityGroup to be set",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": [""]},
            400,
            10161,
            "Group name cannot be an empty string",
        ),
        (
            {"priority_policy": "overflow", "priority_groups": ["a b"]},
            400,
            10162,
            (
                "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ "
                "and may not exceed 16 characters"
            ),
        ),
    ],
)
def test_invalid_consumer_configurations_are_refused(
    config: dict[str, Any], code: int, number: int, sentence: str
) -> None:
    with pytest.raises(ApiError) as refused:
        check(_config(**config), STREAM)
    assert refused.value.document() == {
        "code": code,
        "err_code": number,
        "description": sentence,
    }


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({"ack_policy": "none"}, 10084),
        ({"ack_policy": "all"}, 10098),
        ({"ack_policy": "none", "deliver_subject": "x"}, 10098),
        ({"deliver_policy": "new"}, 10101),
    ],
)
def test_a_work_queue_wants_every_message_acked_one_by_one(
    config: dict[str, Any], number: int
) -> None:
    check(_config(WORKQUEUE), WORKQUEUE)
    with pytest.raises(ApiError) as refused:
        check(_config(WORKQUEUE, **config), WORKQUEUE)
    assert refused.value.err_code == number


@pytest.mark.parametrize(
    ("new", "other", "number"),
    [
        ({}, {}, 10099),
        ({"filter_subject": "w.a"}, {}, 10100),
        ({}, {"filter_subject": "w.a"}, 10099),
        ({"filter_subject": "w.*"}, {"filter_subject": "w.a"}, 10100),
    ],
)
def test_two_consumers_of_a_work_queue_share_no_subject(
    new: dict[str, Any], other: dict[str, Any], number: int
) -> None:
    apart = _config(filter_subject="v")
    check_workqueue_place(apart, [_config(filter_subject="w.a"), _config(filter_subject="w.b")])
    with pytest.raises(ApiError) as refused:
        check_workqueue_place(_config(**new), [_config(**other), apart])
    assert refused.value.err_code == number


@pytest.mark.parametrize(
    ("config", "number", "sentence"),
    [
        (
            {"max_ack_pending": 100},
            10121,
            "consumer max ack pending exceeds system limit of 50",
        ),
        (
            {"inactive_threshold": 100 * SECOND},
            10153,
            "consumer inactive threshold exceeds system limit of 10s",
        ),
    ],
)
def test_the_limits_of_the_stream_hold(config: dict[str, Any], number: int, sentence: str) -> None:
    check(_config(LIMITED), LIMITED)
    with pytest.raises(ApiError) as refused:
        check(_config(LIMITED, **config), LIMITED)
    assert (refused.value.err_code, refused.value.description) == (number, sentence)


PUSH = {"deliver_subject": "to", "idle_heartbeat": SECOND, "flow_control": True}


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ({}, {"ack_policy": "none"}, "ack policy can not be updated"),
        ({}, {"deliver_policy": "new"}, "deliver policy can not be updated"),
        ({}, {"max_waiting": 3}, "max waiting can not be updated"),
        ({}, {"replay_policy": "original"}, "replay policy can not be updated"),
        ({}, {"mem_storage": True}, "storage type can not be updated"),
        ({}, {"deliver_subject": "x"}, "can not update pull consumer to push based"),
        (PUSH, {**PUSH, "flow_control": False}, "flow control can not be updated"),
        (PUSH, {**PUSH, "idle_heartbeat": 2 * SECOND}, "heart beats can not be updated"),
        ({"deliver_subject": "to"}, {}, "can not update push consumer to pull based"),
        (
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 1},
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
            "start sequence can not be updated",
        ),
        (
            {"deliver_policy": "by_start_time", "opt_start_time": TIME},
            {"deliver_policy": "by_start_time", "opt_start_time": "2021-01-01T00:00:00Z"},
            "start time can not be updated",
        ),
    ],
)
def test_forbidden_updates_are_refused(
    old: dict[str, Any], new: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ApiError) as refused:
        check_update(_config(**old), _config(**new))
    assert refused.value.document() == {
        "code": 500,
        "err_code": 10012,
        "description": sentence,
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"filter_subject": "b", "ack_wait": SECOND, "max_deliver": 7, "max_batch": 5}),
        ({}, {"backoff": [SECOND], "headers_only": True, "sample_freq": "10"}),
        ({}, {"description": "d", "metadata": {"a": "b"}, "inactive_threshold": SECOND}),
        (PUSH, {**PUSH, "deliver_subject": "elsewhere", "deliver_group": "q"}),
    ],
)
def test_allowed_updates_are_accepted(old: dict[str, Any], new: dict[str, Any]) -> None:
    check_update(_config(**old), _config(**new))
