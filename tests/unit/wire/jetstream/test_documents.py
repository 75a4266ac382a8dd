import json

import pytest

from penstock.wire.jetstream import documents
from penstock.wire.jetstream.documents import (
    ClusterInfo,
    ConsumerInfo,
    PriorityGroup,
    SequenceInfo,
    SourceInfo,
    StoredMessage,
    StreamInfo,
    StreamState,
    Usage,
)
from penstock.wire.jetstream.errors import BAD_REQUEST, STREAM_NOT_FOUND
from penstock.wire.jetstream.times import ZERO_TIME

ERROR = '"error":{"code":404,"err_code":10059,"description":"stream not found"}'
TIME = "2026-11-15T20:34:22.717818053Z"
EMPTY = StreamState(0, 0, 0, ZERO_TIME, 0, ZERO_TIME)


def _typed(response: str, rest: str) -> bytes:
    return f'{{"type":"io.nats.jetstream.api.v1.{response}",{rest}}}'.encode()


def test_a_stream_info_has_its_fields_in_order() -> None:
    info = StreamInfo({"name": "S"}, TIME, EMPTY, ClusterInfo("here"), ts=TIME)
    assert documents.stream_info(info) == _typed(
        "stream_info_response",
        '"total":0,"offset":0,"limit":0,"config":{"name":"S"},"created":"' + TIME + '",'
        '"state":{"messages":0,"bytes":0,"first_seq":0,"first_ts":"0001-01-01T00:00:00Z",'
        '"last_seq":0,"last_ts":"0001-01-01T00:00:00Z","consumer_count":0},'
        '"cluster":{"leader":"here"},"ts":"' + TIME + '"',
    )


def test_a_state_shows_subjects_and_deletions_on_request() -> None:
    state = StreamState(2, 66, 2, TIME, 4, TIME, 1, {"l": 2}, 1, [3], 5)
    told = json.loads(documents.reply("x", state))
    assert list(told) == [
        "type",
        "messages",
        "bytes",
        "first_seq",
        "first_ts",
        "last_seq",
        "last_ts",
        "num_subjects",
        "subjects",
        "num_deleted",
        "deleted",
        "consumer_count",
    ]


def test_a_mirror_shows_its_lag() -> None:
    mirror = SourceInfo(name="O", lag=0, active=-1, filter_subject="o.1")
    told = json.loads(documents.reply("x", StreamInfo({}, TIME, EMPTY, mirror=mirror)))
    assert told["mirror"] == {"name": "O", "lag": 0, "active": -1, "filter_subject": "o.1"}


def test_a_consumer_info_has_its_fields_in_order() -> None:
    info = ConsumerInfo(
        "S", "c", TIME, {"name": "c"}, SequenceInfo(3, 3, TIME), SequenceInfo(0, 0), 3, 0, 0, 2
    )
    info.ts = TIME
    assert documents.reply("consumer_info_response", info) == _typed(
        "consumer_info_response",
        f'"stream_name":"S","name":"c","created":"{TIME}","config":{{"name":"c"}},'
        f'"delivered":{{"consumer_seq":3,"stream_seq":3,"last_active":"{TIME}"}},'
        '"ack_floor":{"consumer_seq":0,"stream_seq":0},"num_ack_pending":3,'
        f'"num_redelivered":0,"num_waiting":0,"num_pending":2,"ts":"{TIME}"',
    )


def test_a_consumer_info_shows_optional_fields_only_if_set() -> None:
    info = ConsumerInfo(
        "S", "c", TIME, {}, SequenceInfo(0, 0), SequenceInfo(0, 0), 0, 0, 0, 0, True, True, 5
    )
    info.priority_groups = [PriorityGroup("A", "pin", TIME)]
    told = json.loads(documents.reply("x", info))
    assert list(told)[-5:] == ["push_bound", "paused", "pause_remaining", "ts", "priority_groups"]
    assert told["priority_groups"] == [{"group": "A", "pinned_client_id": "pin", "pinned_ts": TIME}]


@pytest.mark.parametrize(
    ("response", "beside"),
    [
        ("stream_create_response", ""),
        ("stream_info_response", ',"total":0,"offset":0,"limit":0'),
        ("stream_names_response", ',"total":0,"offset":0,"limit":0,"streams":null'),
        ("stream_list_response", ',"total":0,"offset":0,"limit":0,"streams":[]'),
        ("consumer_names_response", ',"total":0,"offset":0,"limit":0,"consumers":[]'),
        ("consumer_list_response", ',"total":0,"offset":0,"limit":0,"consumers":[]'),
        ("stream_purge_response", ',"purged":0'),
        ("consumer_pause_response", f',"paused":false,"pause_until":"{ZERO_TIME}"'),
        ("consumer_reset_response", ',"reset_seq":0'),
    ],
)
def test_an_error_reply_has_the_fields_that_clients_expect(response: str, beside: str) -> None:
    told = documents.error_reply(response, STREAM_NOT_FOUND.error())
    assert told == _typed(response, ERROR + beside)


def test_an_error_has_its_own_sentence() -> None:
    told = json.loads(documents.error_reply("x", BAD_REQUEST.error()))
    assert told["error"] == {"code": 400, "err_code": 10003, "description": "bad request"}


def test_success_is_a_boolean() -> None:
    assert documents.success("stream_delete_response") == _typed(
        "stream_delete_response", '"success":true'
    )


@pytest.mark.parametrize(
    ("kind", "found", "offset", "told"),
    [
        ("stream", ["a", "b"], 0, '"total":2,"offset":0,"limit":1024,"streams":["a","b"]'),
        ("stream", ["a", "b"], 1, '"total":2,"offset":1,"limit":1024,"streams":["b"]'),
        ("stream", ["a", "b"], 99, '"total":2,"offset":2,"limit":1024,"streams":null'),
        ("stream", ["a"], -5, '"total":1,"offset":0,"limit":1024,"streams":["a"]'),
        ("stream", [], 0, '"total":0,"offset":0,"limit":1024,"streams":null'),
        ("consumer", [], 0, '"total":0,"offset":0,"limit":1024,"consumers":[]'),
    ],
)
def test_names_are_paged(kind: str, found: list[str], offset: int, told: str) -> None:
    assert documents.names(kind, found, offset) == _typed(f"{kind}_names_response", told)


def test_a_page_of_names_has_an_end() -> None:
    found = [f"{number:05}" for number in range(2000)]
    assert json.loads(documents.names("stream", found, 10))["streams"] == found[10:1034]


def test_infos_are_paged() -> None:
    info = StreamInfo({"name": "S"}, TIME, EMPTY)
    told = json.loads(documents.infos("stream", [info], 3, 2))
    assert (told["total"], told["offset"], told["limit"]) == (3, 2, 256)
    assert [list(one) for one in told["streams"]] == [["config", "created", "state", "ts"]]
    assert json.loads(documents.infos("consumer", [], 0, 0))["consumers"] == []


def test_the_account_info_shows_usage_and_no_limits() -> None:
    assert documents.account_info(Usage(1, 332, 2, 7, 456, 143)) == _typed(
        "account_info_response",
        '"memory":1,"storage":332,"reserved_memory":0,"reserved_storage":0,"streams":2,'
        '"consumers":7,"limits":{"max_memory":-1,"max_storage":-1,"max_streams":-1,'
        '"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,'
        '"storage_max_stream_bytes":-1,"max_bytes_required":false},'
        '"api":{"level":5,"total":456,"errors":143}',
    )


def test_empty_fields_of_a_message_are_omitted() -> None:
    full = StoredMessage("p.a", 3, b"NATS/1.0\r\nA: b\r\n\r\n", b"hello", TIME)
    assert documents.reply("stream_msg_get_response", {"message": full}) == _typed(
        "stream_msg_get_response",
        '"message":{"subject":"p.a","seq":3,"hdrs":"TkFUUy8xLjANCkE6IGINCg0K",'
        f'"data":"aGVsbG8=","time":"{TIME}"}}',
    )
    bare = json.loads(documents.reply("x", {"message": StoredMessage("p.a", 2, time=TIME)}))
    assert bare["message"] == {"subject": "p.a", "seq": 2, "time": TIME}


def test_an_advisory_has_the_facts_of_its_event() -> None:
    told = documents.advisory("max_deliver", "id1", TIME, stream="S", consumer="c", deliveries=2)
    assert told == (
        b'{"type":"io.nats.jetstream.advisory.v1.max_deliver","id":"id1",'
        b'"timestamp":"' + TIME.encode() + b'","stream":"S","consumer":"c","deliveries":2}'
    )
