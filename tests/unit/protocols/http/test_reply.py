from collections.abc import AsyncIterator

import pytest

from penstock.formats.api import ErrorReply
from penstock.protocols.http.reply import Event, Reply, answer, error


async def _sent(method: str, reply: Reply) -> list[Event]:
    events: list[Event] = []

    async def send(event: Event) -> None:
        events.append(event)

    await answer({"type": "http", "method": method}, send, reply)
    return events


@pytest.mark.parametrize(("method", "body"), [("GET", b'{"a":1}'), ("HEAD", b"")])
async def test_a_reply_is_json_and_head_gets_the_same_headers_without_it(
    method: str, body: bytes
) -> None:
    assert await _sent(method, Reply(201, {"a": 1}, ((b"allow", b"GET"),))) == [
        {
            "type": "http.response.start",
            "status": 201,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"7"),
                (b"allow", b"GET"),
            ],
        },
        {"type": "http.response.body", "body": body},
    ]


def test_an_error_has_a_message_and_the_code_of_its_status_unless_it_has_its_own() -> None:
    assert error(404, "nothing here") == Reply(404, ErrorReply("nothing here", "not_found"))
    assert error(503, "later", "shutting_down").body == ErrorReply("later", "shutting_down")


async def test_what_was_deleted_has_no_body_and_says_nothing_of_one() -> None:
    assert await _sent("DELETE", Reply(204, b"")) == [
        {"type": "http.response.start", "status": 204, "headers": []},
        {"type": "http.response.body", "body": b""},
    ]


async def test_a_reply_may_come_piece_by_piece() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    assert await _sent("POST", Reply(200, pieces())) == [
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"application/json")],
        },
        {"type": "http.response.body", "body": b"a", "more_body": True},
        {"type": "http.response.body", "body": b"b", "more_body": True},
        {"type": "http.response.body", "body": b""},
    ]
