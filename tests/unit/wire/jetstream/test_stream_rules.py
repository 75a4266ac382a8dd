import json
from typing import Any

import pytest

from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import StreamConfig, normalised, parse_stream_config
from penstock.wire.jetstream.stream_rules import check_new, check_update

SECOND = 10**9
NAME_RULE = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
API = "subjects that overlap with jetstream api require no-ack to be true"


def _config(**fields: Any) -> StreamConfig:
    fields = {"name": "S", **fields}
    config, pedantic = parse_stream_config(json.dumps(fields).encode(), fields["name"])
    return normalised(config, pedantic=pedantic)


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"subjects": ["a", "b.*", "c.>"]},
    {"subjects": ["$JS.EVENT.>"]},
    {"subjects": ["$KV.x.>"]},
    {"subjects": [">"], "no_ack": True},
    {"subjects": ["$JS.API.FOO"], "no_ack": True},
    {"name": "é"},
    {"name": "x" * 255, "description": "x" * 4096},
    {"mirror": {"name": "o", "opt_start_seq": 5}},
    {"mirror": {"name": "o", "opt_start_time": "2020-01-01T00:00:00Z"}},
    {"compression": "s2", "storage": "memory"},
    {"persist_mode": "async"},
    {"placement": {"cluster": "x"}},
    {"mirror": {"name": "o", "filter_subject": "x.>"}},
    {"mirror": {"name": "o"}, "mirror_direct": True},
    {"max_age": SECOND // 10, "duplicate_window": SECOND // 10},
    {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
    {"deny_delete": True, "allow_rollup_hdrs": True},
    {"subject_delete_marker_ttl": SECOND},
    {"first_seq": 100},
    {"consumer_limits": {"inactive_threshold": 5, "max_ack_pending": -5}},
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=str)
def test_valid_stream_configurations_are_accepted(fields: dict[str, Any]) -> None:
    check_new(_config(**fields))
    check_update(_config(**fields), _config(**fields))


REFUSED: list[tuple[dict[str, Any], int, int, str]] = [
    ({"name": "a*b"}, 500, 10052, NAME_RULE),
    ({"name": "a b"}, 500, 10052, NAME_RULE),
    ({"name": "x" * 256}, 500, 10052, "stream name is too long, maximum allowed is 255"),
    (
        {"description": "x" * 4097},
        500,
        10052,
        "stream description is too long, maximum allowed is 4096",
    ),
    (
        {"metadata": {"a": "x" * 131072}},
        500,
        10052,
        "stream metadata exceeds maximum size of 131072 bytes",
    ),
    ({"subjects": ["a..b"]}, 500, 10052, "invalid subject"),
    ({"subjects": [""]}, 500, 10052, "invalid subject"),
    ({"subjects": ["x.>.y"]}, 500, 10052, "invalid subject"),
    ({"subjects": ["x", "x"]}, 500, 10052, 'subject "x" overlaps with "x"'),
    ({"subjects": ["q.*", "q.a"]}, 500, 10052, 'subject "q.*" overlaps with "q.a"'),
    ({"subjects": [">"]}, 500, 10052, "capturing all subjects requires no-ack to be true"),
    ({"subjects": ["$JS.API.>"]}, 500, 10052, API),
    ({"subjects": ["*.>"]}, 500, 10052, API),
    (
        {"subjects": ["$SYS.>"]},
        500,
        10052,
        "subjects that overlap with system api require no-ack to be true",
    ),
    ({"num_replicas": 7}, 500, 10052, "maximum replicas is 5"),
    ({"num_replicas": -1}, 400, 10133, "replicas count cannot be negative"),
    ({"num_replicas": 5}, 500, 10074, "replicas > 1 not supported in non-clustered mode"),
    ({"num_replicas": 3}, 500, 10074, "replicas > 1 not supported in non-clustered mode"),
    ({"max_age": -1}, 500, 10052, "max age can not be negative"),
    ({"max_age": 50_000_000}, 500, 10052, "max age needs to be >= 100ms"),
    ({"duplicate_window": -1}, 500, 10052, "duplicates window can not be negative"),
    ({"duplicate_window": 50_000_000}, 500, 10052, "duplicates window needs to be >= 100ms"),
    (
        {"duplicate_window": 2 * SECOND, "max_age": SECOND},
        500,
        10052,
        "duplicates window can not be larger then max age",
    ),
    (
        {"discard_new_per_subject": True, "max_msgs_per_subject": 1},
        500,
        10052,
        "discard new per subject requires discard new policy to be set",
    ),
    (
        {"discard_new_per_subject": True, "discard": "new"},
        500,
        10052,
        "discard new per subject requires max msgs per subject > 0",
    ),
    (
        {"allow_rollup_hdrs": True, "deny_purge": True},
        500,
        10052,
        "roll-ups require the purge permission",
    ),
    (
        {"subject_delete_marker_ttl": 10},
        500,
        10052,
        "subject delete marker TTL must be at least 1 second",
    ),
    (
        {"subject_delete_marker_ttl": -SECOND},
        500,
        10052,
        "subject delete marker TTL must not be negative",
    ),
    (
        {"subject_delete_marker_ttl": SECOND, "pedantic": True},
        500,
        10052,
        "subject delete marker cannot be set if message TTLs are disabled",
    ),
    (
        {"subject_delete_marker_ttl": SECOND, "pedantic": True, "allow_msg_ttl": True},
        500,
        10052,
        "subject delete marker cannot be set if roll-ups are disabled",
    ),
    ({"mirror_direct": True}, 500, 10052, "stream has no mirror but does have mirror direct"),
    (
        {"mirror": {"name": "o"}, "subjects": ["x"]},
        400,
        10034,
        "stream mirrors can not contain subjects",
    ),
    (
        {"mirror": {"name": "o"}, "sources": [{"name": "o"}]},
        400,
        10031,
        "stream mirrors can not also contain other sources",
    ),
    (
        {"mirror": {"name": "o"}, "first_seq": 10},
        400,
        10143,
        "stream mirrors can not have first sequence configured",
    ),
    (
        {"mirror": {"name": "o"}, "allow_msg_counter": True},
        400,
        10173,
        "stream mirrors can not also calculate counters",
    ),
    (
        {"mirror": {"name": "o"}, "allow_atomic": True},
        400,
        10198,
        "stream mirrors can not also use atomic publishing",
    ),
    (
        {"mirror": {"name": "o"}, "allow_batched": True},
        400,
        10209,
        "stream mirrors can not also use batch publishing",
    ),
    (
        {"mirror": {"name": "o"}, "allow_msg_schedules": True},
        400,
        10186,
        "stream mirrors can not also schedule messages",
    ),
    (
        {"allow_msg_schedules": True, "discard": "new"},
        500,
        10052,
        "message scheduling cannot use discard new",
    ),
    (
        {"allow_msg_schedules": True, "pedantic": True},
        500,
        10052,
        "message scheduling cannot be set if roll-ups are disabled",
    ),
    (
        {"allow_msg_counter": True, "discard": "new"},
        500,
        10052,
        "counter stream cannot use discard new",
    ),
    (
        {"allow_msg_counter": True, "allow_msg_ttl": True},
        500,
        10052,
        "counter stream cannot use message TTLs",
    ),
    (
        {"allow_msg_counter": True, "allow_msg_schedules": True},
        500,
        10052,
        "counter stream cannot use message schedules",
    ),
    (
        {"allow_msg_counter": True, "retention": "interest"},
        500,
        10052,
        "counter stream can only use limits retention",
    ),
    (
        {"allow_atomic": True, "persist_mode": "async"},
        500,
        10052,
        "async persist mode is not supported with atomic batch publish",
    ),
    ({"mirror": {"name": ""}}, 400, 10142, "mirrored stream name is invalid"),
    (
        {"mirror": {"name": "o", "opt_start_seq": 1, "opt_start_time": "2020-01-01T00:00:00Z"}},
        400,
        10032,
        "stream mirrors can not have both start seq and start time configured",
    ),
    (
        {"mirror": {"name": "o", "subject_transforms": [{"src": "a", "dest": "b"}]}},
        500,
        10052,
        "mirrors of other accounts or with transforms are not supported",
    ),
    (
        {"mirror": {"name": "o", "consumer": {}}},
        500,
        10052,
        "mirrors of other accounts or with transforms are not supported",
    ),
    (
        {"mirror": {"name": "o", "external": {"api": "x"}}},
        500,
        10052,
        "mirrors of other accounts or with transforms are not supported",
    ),
]


@pytest.mark.parametrize(("fields", "code", "number", "sentence"), REFUSED)
def test_invalid_stream_configurations_are_refused(
    fields: dict[str, Any], code: int, number: int, sentence: str
) -> None:
    config = _config(**fields)
    for refuse in (check_new, lambda new: check_update(new, new)):
        with pytest.raises(ApiError) as refused:
            refuse(config)
        assert refused.value.document() == {
            "code": code,
            "err_code": number,
            "description": sentence,
        }


@pytest.mark.parametrize(
    ("feature", "fields"),
    [
        ("placement tags", {"placement": {"tags": ["a"]}}),
    ],
)
def test_unsupported_options_are_refused_by_name(feature: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        check_new(_config(**fields))
    assert refused.value.description == f"{feature} is not supported by this server"


def test_batches_and_counters_may_be_configured() -> None:
    check_new(_config(allow_atomic=True, allow_batched=True))
    check_new(_config(allow_msg_counter=True, allow_atomic=True, allow_batched=True))
    check_new(_config(allow_batched=True, persist_mode="async"))


def test_a_stream_cannot_be_made_sealed_but_can_be_sealed() -> None:
    sealed = _config(sealed=True)
    with pytest.raises(ApiError, match="for create can not be sealed"):
        check_new(sealed)
    check_update(_config(), sealed)
    check_update(_config(allow_rollup_hdrs=True), _config(allow_rollup_hdrs=True, sealed=True))


CANNOT = "stream configuration update can not "


@pytest.mark.parametrize(
    ("old", "new", "number", "sentence"),
    [
        ({}, {"storage": "memory"}, 10052, CANNOT + "change storage type"),
        (
            {},
            {"retention": "workqueue"},
            10052,
            CANNOT + "change retention policy to/from workqueue",
        ),
        (
            {"retention": "workqueue"},
            {"retention": "interest"},
            10052,
            CANNOT + "change retention policy to/from workqueue",
        ),
        (
            {"sealed": True},
            {"deny_delete": True, "deny_purge": True},
            10052,
            CANNOT + "unseal a sealed stream",
        ),
        ({"deny_delete": True}, {}, 10052, CANNOT + "cancel deny message deletes"),
        ({"deny_purge": True}, {}, 10052, CANNOT + "cancel deny purge"),
        ({"allow_msg_ttl": True}, {}, 10052, "message TTL status can not be disabled"),
        ({"allow_msg_schedules": True}, {}, 10052, "message schedules can not be disabled"),
        ({"persist_mode": "async"}, {}, 10052, CANNOT + "change persist mode"),
        ({"allow_msg_counter": True}, {}, 10052, CANNOT + "change message counter setting"),
        ({}, {"allow_msg_counter": True}, 10052, CANNOT + "change message counter setting"),
        (
            {"mirror": {"name": "o"}},
            {"mirror": {"name": "p"}},
            10055,
            "stream mirror configuration can not be updated",
        ),
        (
            {},
            {"mirror": {"name": "p"}},
            10055,
            "stream mirror configuration can not be updated",
        ),
    ],
)
def test_forbidden_updates_are_refused(
    old: dict[str, Any], new: dict[str, Any], number: int, sentence: str
) -> None:
    with pytest.raises(ApiError) as refused:
        check_update(_config(**old), _config(**new))
    assert (refused.value.err_code, refused.value.description) == (number, sentence)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"retention": "interest"}),
        ({}, {"max_msgs": 5, "subjects": ["x"], "allow_direct": True, "deny_delete": True}),
        ({"mirror": {"name": "o"}}, {"subjects": ["promoted.>"]}),
        ({}, {"allow_msg_ttl": True, "max_consumers": 5}),
        ({}, {"allow_atomic": True, "allow_batched": True}),
        ({"allow_atomic": True, "allow_batched": True}, {"persist_mode": ""}),
    ],
)
def test_allowed_updates_are_accepted(old: dict[str, Any], new: dict[str, Any]) -> None:
    check_update(_config(**old), _config(**new))


@pytest.mark.parametrize("field", ["subject_transform", "republish"])
def test_a_mapping_that_cannot_be_followed_is_refused(field: str) -> None:
    with pytest.raises(ApiError, match="subject mapping"):
        check_new(_config(subjects=["s.*"], **{field: {"src": "s.*", "dest": "t.$2"}}))
