import pytest

from penstock.doors.http.reply import Event, Reply, answer, error


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


def test_an_error_has_a_message() -> None:
    assert error(404, "nothing here") == Reply(404, {"message": "nothing here"})
