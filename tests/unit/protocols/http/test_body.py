import asyncio

import pytest

from penstock.model.errors import Overloaded
from penstock.protocols.http.body import Bodies, ClientGone, content_type, header
from penstock.protocols.http.errors import BodyTooLarge
from penstock.protocols.http.reply import Event
from tests.broker.http import BODY_BYTES_MAX, HttpSite


def _events(*pieces: bytes) -> asyncio.Queue[Event]:
    queue: asyncio.Queue[Event] = asyncio.Queue()
    for piece in pieces:
        queue.put_nowait({"type": "http.request", "body": piece, "more_body": True})
    queue.put_nowait({"type": "http.request"})
    return queue


def _scope(length: int | None = None) -> Event:
    return {"headers": [] if length is None else [(b"content-length", b"%d" % length)]}


@pytest.mark.parametrize("length", [None, 5])
async def test_a_body_is_read_piece_by_piece_and_counts_until_it_is_done(
    length: int | None,
) -> None:
    bodies = Bodies(10, 10)
    async with bodies.read(_scope(length), _events(b"ab", b"", b"cde").get) as body:
        assert (body, bodies.pending_bytes) == (b"abcde", 5)
    assert bodies.pending_bytes == 0


async def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    bodies = Bodies(10, 100)
    events = _events(b"x" * 11)
    with pytest.raises(BodyTooLarge, match=r"the limit http.max_body_bytes is 10") as caught:
        async with bodies.read(_scope(11), events.get):
            pass
    assert (caught.value.bytes_max, events.qsize(), bodies.pending_bytes) == (10, 2, 0)


async def test_a_body_that_does_not_say_is_read_up_to_the_limit() -> None:
    bodies = Bodies(10, 100)
    events = _events(b"x" * 10, b"x", b"x")
    with pytest.raises(BodyTooLarge):
        async with bodies.read(_scope(), events.get):
            pass
    assert (events.qsize(), bodies.pending_bytes) == (2, 0)


async def test_all_bodies_together_have_a_limit() -> None:
    bodies = Bodies(10, 15)
    async with bodies.read(_scope(10), _events(b"x" * 10).get):
        with pytest.raises(Overloaded, match=r"http.max_pending_bytes is 15; retry later"):
            async with bodies.read(_scope(6), _events(b"x" * 6).get):
                pass
        async with bodies.read(_scope(5), _events(b"x" * 5).get):
            assert bodies.pending_bytes == 15
    assert bodies.pending_bytes == 0


async def test_what_is_announced_and_not_sent_takes_no_room_from_others() -> None:
    bodies = Bodies(10, 15)
    silent: asyncio.Queue[Event] = asyncio.Queue()

    async def wait() -> None:
        async with bodies.read(_scope(10), silent.get):
            pass

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    async with bodies.read(_scope(10), _events(b"x" * 10).get):
        assert bodies.pending_bytes == 10
        silent.put_nowait({"type": "http.request", "body": b"x" * 6, "more_body": True})
        with pytest.raises(Overloaded):
            await waiting
        assert bodies.pending_bytes == 10
    assert bodies.pending_bytes == 0


async def test_a_client_that_leaves_in_the_middle_is_gone() -> None:
    bodies = Bodies(10, 10)
    queue: asyncio.Queue[Event] = asyncio.Queue()
    queue.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    queue.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientGone):
        async with bodies.read(_scope(), queue.get):
            pass
    assert bodies.pending_bytes == 0


def test_headers_are_found_by_name() -> None:
    scope = {"headers": [(b"content-type", b" Application/JSON ; charset=utf-8"), (b"a", b"b")]}
    assert content_type(scope) == "application/json"
    assert (header(scope, b"a"), header(scope, b"b"), header({}, b"a")) == ("b", "", "")


async def test_limits_hold_for_every_request_with_a_body(server: HttpSite) -> None:
    large = b" " * (BODY_BYTES_MAX + 1)
    for path in ("/v1/push", "/v1/fetch", "/v1/tenants"):
        answer = await server.ask("POST", path, large)
        assert answer.status == 413
        assert "http.max_body_bytes" in answer.body["message"]
    server.bodies.pending_bytes = 4 << 20
    answer = await server.ask("POST", "/v1/push", b"{}")
    assert answer.status == 429
    assert "http.max_pending_bytes" in answer.body["message"]
    server.bodies.pending_bytes = 0


async def test_a_client_that_leaves_gets_nothing(server: HttpSite) -> None:
    client = server.start("POST", "/v1/push", b"{", b"", content_type="application/json")
    client._events.get_nowait()
    client._events.get_nowait()
    client.leave()
    assert await client.ended() == []
