from collections.abc import Callable
from typing import Any

import pytest

from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.requests import (
    DirectGet,
    DirectRefusal,
    MessageDelete,
    MessageGet,
    NextRequest,
    PageRequest,
    PurgeRequest,
    StreamInfoRequest,
    parse_direct_get,
    parse_direct_get_subject,
    parse_info,
    parse_message_delete,
    parse_message_get,
    parse_next,
    parse_page,
    parse_pause,
    parse_purge,
    parse_reset,
    parse_unpin,
)

EMPTY, MALFORMED, BAD = DirectRefusal.EMPTY, DirectRefusal.MALFORMED, DirectRefusal.BAD
TIME = '"2020-01-01T00:00:00Z"'


def _page(body: bytes) -> PageRequest:
    return parse_page(body, "JSApiStreamNamesRequest")


@pytest.mark.parametrize(
    ("parse", "body", "request_"),
    [
        (parse_info, b"", StreamInfoRequest()),
        (parse_info, b"x", StreamInfoRequest()),
        (
            parse_info,
            b'{"subjects_filter":"p.>","deleted_details":true,"offset":3}',
            StreamInfoRequest(True, "p.>", 3),
        ),
        (parse_info, b'{"subjects_filter":null,"offset":null}', StreamInfoRequest()),
        (_page, b"", PageRequest()),
        (_page, b'{"offset":1,"subject":"s"}', PageRequest(1, "s")),
        (parse_purge, b"", PurgeRequest()),
        (parse_purge, b"x", PurgeRequest()),
        (parse_purge, b'{"filter":"a","keep":1}', PurgeRequest("a", keep=1)),
        (parse_purge, b'{"filter":"a","seq":3}', PurgeRequest("a", 3)),
        (parse_message_get, b'{"seq":1}', MessageGet(1)),
        (parse_message_get, b'{"seq":1,"no_hdr":true}', MessageGet(1, no_hdr=True)),
        (parse_message_get, b'{"last_by_subj":"p.*"}', MessageGet(last_by_subj="p.*")),
        (
            parse_message_get,
            b'{"seq":4,"next_by_subj":"p"}',
            MessageGet(4, next_by_subj="p"),
        ),
        (parse_message_delete, b'{"seq":4,"no_erase":true}', MessageDelete(4, True)),
        (parse_pause, b"", None),
        (parse_pause, b'{"pause_until":"1970-01-01T00:00:01Z"}', 10**9),
        (parse_pause, b'{"pause_until":"0001-01-01T00:00:00Z"}', None),
        (parse_reset, b"", 0),
        (parse_reset, b'{"seq":3,"foo":1}', 3),
        (parse_unpin, b'{"group":"A"}', "A"),
    ],
)
def test_requests_are_parsed(parse: Callable[[bytes], Any], body: bytes, request_: Any) -> None:
    assert parse(body) == request_


@pytest.mark.parametrize(
    ("parse", "body", "number"),
    [
        (parse_info, b'{"foo":1}', 10025),
        (parse_info, b"[]", 10025),
        (_page, b'{"foo":1}', 10025),
        (parse_purge, b'{"seq":10,"keep":1}', 10003),
        (parse_purge, b'{"foo":1}', 10025),
        (parse_message_get, b"", 10003),
        (parse_message_get, b"{}", 10003),
        (parse_message_get, b"{bad", 10025),
        (parse_message_get, b"x", 10025),
        (parse_message_get, b'{"seq":0}', 10003),
        (parse_message_get, b'{"seq":-1}', 10025),
        (parse_message_get, b'{"seq":1,"last_by_subj":"a"}', 10003),
        (parse_message_get, b'{"next_by_subj":"a","last_by_subj":"a"}', 10003),
        (parse_message_get, b'{"seq":1,"start_time":%b}' % TIME.encode(), 10003),
        (parse_message_get, b'{"last_by_subj":"a","start_time":%b}' % TIME.encode(), 10003),
        (parse_message_get, b'{"seq":1,"batch":2}', 10003),
        (parse_message_get, b'{"seq":1,"max_bytes":5}', 10003),
        (parse_message_get, b'{"multi_last":["s.1"]}', 10003),
        (parse_message_get, b'{"seq":1,"foo":1}', 10025),
        (parse_message_delete, b"", 10003),
        (parse_message_delete, b'{"seq":1,"foo":1}', 10025),
        (parse_pause, b'{"pause_until":"x"}', 10025),
        (parse_pause, b'{"foo":1}', 10025),
        (parse_reset, b'{"seq":"x"}', 10025),
        (parse_unpin, b"", 10025),
        (parse_unpin, b'{"x":1}', 10025),
    ],
)
def test_invalid_requests_are_refused(
    parse: Callable[[bytes], Any], body: bytes, number: int
) -> None:
    with pytest.raises(ApiError) as refused:
        parse(body)
    assert refused.value.err_code == number


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b"", NextRequest(batch=1)),
        (b"5", NextRequest(batch=5)),
        (b"-1", NextRequest(batch=-1)),
        (b"garbage", NextRequest(batch=1)),
        (b'{"batch":3,"expires":5,"foo":1}', NextRequest(3, 5)),
        (b'{"batch":2,"expires":null,"no_wait":null}', NextRequest(2)),
        (b"{}", NextRequest(batch=0)),
        (
            (
                b'{"batch":1,"no_wait":true,"max_bytes":2,"idle_heartbeat":3,"group":"A",'
                b'"min_pending":4,"min_ack_pending":5,"id":"x","priority":6}'
            ),
            NextRequest(1, 0, True, 2, 3, "A", 4, 5, "x", 6),
        ),
    ],
)
def test_pull_requests_are_parsed(body: bytes, asked: NextRequest) -> None:
    assert parse_next(body) == asked


@pytest.mark.parametrize("body", [b"{", b'{"batch":"x"}', b'{"batch":1', b'{"batch":1}}'])
def test_a_pull_that_is_broken_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_next(body)


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ('{"seq":1}', DirectGet(1)),
        ('{"seq":null,"last_by_subj":"s.1"}', DirectGet(last_by_subj="s.1")),
        ('{"last_by_subj":"a","max_bytes":5}', DirectGet(last_by_subj="a", max_bytes=5)),
        ('{"seq":5,"next_by_subj":"d.b"}', DirectGet(5, next_by_subj="d.b")),
        ('{"seq":1,"batch":-1}', DirectGet(1, batch=-1)),
        (f'{{"start_time":{TIME},"batch":2}}', DirectGet(batch=2, start_time=TIME[1:-1])),
        ('{"multi_last":["a","b"],"seq":3}', DirectGet(3, multi_last=("a", "b"))),
        ('{"seq":1,"foo":2,"no_hdr":true}', DirectGet(1, no_hdr=True)),
        ("", EMPTY),
        ("{}", EMPTY),
        ('{"foo":1}', EMPTY),
        ('{"seq":0}', EMPTY),
        ('{"batch":2}', EMPTY),
        ('{"multi_last":[]}', EMPTY),
        ("{bad", MALFORMED),
        ("x", MALFORMED),
        ("[]", MALFORMED),
        ('{"seq":-1}', MALFORMED),
        ('{"seq":"x"}', MALFORMED),
        ('{"seq":99999999999999999999}', MALFORMED),
        ('{"start_time":"x"}', MALFORMED),
        ('{"seq":1,"last_by_subj":"a"}', BAD),
        (f'{{"seq":1,"start_time":{TIME}}}', BAD),
        ('{"last_by_subj":"a","next_by_subj":"a"}', BAD),
        ('{"last_by_subj":"a","batch":2}', BAD),
        ('{"multi_last":["a"],"last_by_subj":"a"}', BAD),
        ('{"multi_last":["a"],"next_by_subj":"a"}', BAD),
        (f'{{"multi_last":["a"],"up_to_seq":4,"up_to_time":{TIME}}}', BAD),
    ],
)
def test_direct_gets_are_parsed(body: str, asked: DirectGet | DirectRefusal) -> None:
    assert parse_direct_get(body.encode()) == asked


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b"", DirectGet(last_by_subj="d.a")),
        (b"{}", DirectGet(last_by_subj="d.a")),
        (b'{"no_hdr":true}', DirectGet(last_by_subj="d.a", no_hdr=True)),
        (b'{"seq":1}', BAD),
        (b'{"batch":1}', BAD),
        (b'{"multi_last":["a"]}', BAD),
        (b"x", MALFORMED),
    ],
)
def test_a_direct_get_by_subject_accepts_no_other_field(
    body: bytes, asked: DirectGet | DirectRefusal
) -> None:
    assert parse_direct_get_subject(body, "d.a") == asked
