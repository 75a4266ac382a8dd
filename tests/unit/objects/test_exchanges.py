import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from aiohttp import web

from penstock.objects.calls import CallLimits
from penstock.objects.exchanges import Exchanges, NoReply, Reply, backoff_seconds

LIMITS = CallLimits(
    request_seconds=5.0, retries_max=2, retry_seconds_min=0.001, retry_seconds_max=0.002
)


class Server:
    """Answers with the given statuses in turn, the last one for ever."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.body = b"body"
        self.requests: list[web.Request] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=status or 500, body=self.body)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    server, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    yield server
    await runner.cleanup()


@pytest_asyncio.fixture
async def exchanges() -> AsyncIterator[Exchanges]:
    exchanges = Exchanges(LIMITS)
    yield exchanges
    await exchanges.close()


async def test_a_request_is_sent_as_it_was_quoted(server: Server, exchanges: Exchanges) -> None:
    url = f"{server.url}/a%2Fb%20c/%C3%A9?x=%2F&y="
    assert await exchanges.ask("DELETE", url, {"x-mine": "1"}) == Reply(200, b"body")
    (request,) = server.requests
    assert (request.method, request.raw_path) == ("DELETE", "/a%2Fb%20c/%C3%A9?x=%2F&y=")
    assert request.headers["x-mine"] == "1"


@pytest.mark.parametrize("passing", [[500], [503, 429], [408], [0], [0, 500]])
async def test_what_may_pass_is_tried_again(
    server: Server, exchanges: Exchanges, passing: list[int]
) -> None:
    server.statuses = [*passing, 200]
    assert (await exchanges.ask("GET", server.url, {})).status == 200
    assert len(server.requests) == len(passing) + 1


@pytest.mark.parametrize("status", [204, 301, 403, 404, 501])
async def test_an_answer_is_not_tried_again(
    server: Server, exchanges: Exchanges, status: int
) -> None:
    server.statuses = [status]
    assert (await exchanges.ask("GET", server.url, {})).status == status
    assert len(server.requests) == 1


async def test_retries_end(server: Server, exchanges: Exchanges) -> None:
    server.statuses = [503]
    assert (await exchanges.ask("GET", server.url, {})).may_pass
    assert len(server.requests) == 3
    await exchanges.ask("GET", server.url, {}, retries_max=0)
    assert len(server.requests) == 4
    server.statuses = [0]
    with pytest.raises(NoReply, match=r"from 127\.0\.0\.1"):
        await exchanges.ask("GET", server.url, {})
    # The client tries a connection that was kept and is broken once more by itself.
    assert len(server.requests) in range(7, 11)


async def test_a_body_without_end_is_refused(
    server: Server, exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.objects.exchanges.BODY_BYTES_MAX", 3)
    with pytest.raises(NoReply):
        await exchanges.ask("GET", server.url, {})


async def test_a_server_that_does_not_answer_is_given_up_on() -> None:
    held: list[asyncio.StreamWriter] = []
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
    accept = lambda _, writer: held.append(writer)  # noqa: E731
    silent = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    exchanges = Exchanges(LIMITS._replace(request_seconds=0.05))
    with pytest.raises(NoReply, match="TimeoutError"):
        await exchanges.ask("GET", f"http://127.0.0.1:{port}", {})
    await exchanges.close()
    for writer in held:
        writer.close()
    silent.close()
    await silent.wait_closed()
    assert len(held) == 3


@pytest.mark.feature("T15")
def test_retries_come_ever_further_apart_up_to_a_limit_and_not_in_step() -> None:
    limits = CallLimits(retry_seconds_min=0.1, retry_seconds_max=1.0)
    for attempt, least in enumerate([0.1, 0.2, 0.4, 0.8, 1.0, 1.0]):
        waits = [backoff_seconds(attempt, limits) for _ in range(50)]
        assert all(least <= seconds <= 2 * least for seconds in waits)
        assert len(set(waits)) > 1
