import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from aiohttp import web

from penstock.objects.calls import CallLimits
from penstock.objects.s3_requests import (
    Exchanges,
    NoReply,
    S3Credentials,
    S3Response,
    backoff_seconds,
    query_string,
    quoted_path,
    signed_headers,
)

LIMITS = CallLimits(
    request_seconds=5.0, retries_max=2, retry_seconds_min=0.001, retry_seconds_max=0.002
)


class Server:
    """Replies with these statuses in turn, then always with the last one."""

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
    assert await exchanges.ask("DELETE", url, {"x-mine": "1"}) == S3Response(200, b"body")
    (request,) = server.requests
    assert (request.method, request.raw_path) == ("DELETE", "/a%2Fb%20c/%C3%A9?x=%2F&y=")
    assert request.headers["x-mine"] == "1"


@pytest.mark.parametrize("passing", [[500], [503, 429], [408], [0], [0, 500]])
async def test_temporary_errors_are_retried(
    server: Server, exchanges: Exchanges, passing: list[int]
) -> None:
    server.statuses = [*passing, 200]
    assert (await exchanges.ask("GET", server.url, {})).status == 200
    assert len(server.requests) == len(passing) + 1


@pytest.mark.parametrize("status", [204, 301, 403, 404, 501])
async def test_other_replies_are_not_retried(
    server: Server, exchanges: Exchanges, status: int
) -> None:
    server.statuses = [status]
    assert (await exchanges.ask("GET", server.url, {})).status == status
    assert len(server.requests) == 1


async def test_retries_are_limited(server: Server, exchanges: Exchanges) -> None:
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
    monkeypatch.setattr("penstock.objects.s3_requests.BODY_BYTES_MAX", 3)
    with pytest.raises(NoReply):
        await exchanges.ask("GET", server.url, {})


async def test_a_server_without_reply_is_an_error() -> None:
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
def test_retry_delays_double_up_to_a_limit_with_jitter() -> None:
    limits = CallLimits(retry_seconds_min=0.1, retry_seconds_max=1.0)
    for attempt, least in enumerate([0.1, 0.2, 0.4, 0.8, 1.0, 1.0]):
        waits = [backoff_seconds(attempt, limits) for _ in range(50)]
        assert all(least <= seconds <= 2 * least for seconds in waits)
        assert len(set(waits)) > 1


# The examples of AWS, "Signature Calculations for the Authorization Header".
KEYS = S3Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
WHEN = datetime(2013, 5, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    ("path", "query", "extra", "signature"),
    [
        (
            "/test.txt",
            {},
            {"range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "/",
            {"lifecycle": ""},
            {},
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "/",
            {"prefix": "J", "max-keys": "2"},
            {},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_signatures_are_those_of_the_documented_examples(
    path: str, query: dict[str, str], extra: dict[str, str], signature: str
) -> None:
    headers = signed_headers("GET", HOST, path, query, KEYS, "us-east-1", WHEN, extra)
    names = ";".join(sorted({*extra, "host", "x-amz-content-sha256", "x-amz-date"}))
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders={names}, Signature={signature}"
    )


def test_the_token_of_temporary_keys_is_sent_and_signed() -> None:
    keys = S3Credentials("AK", "SK", "the token")
    headers = signed_headers("GET", HOST, "/", {}, keys, "us-east-1", WHEN)
    assert headers["x-amz-security-token"] == "the token"
    assert "x-amz-security-token" in headers["authorization"]


def test_signed_paths_and_queries_are_quoted() -> None:
    assert quoted_path("/b/a b/é+%~") == "/b/a%20b/%C3%A9%2B%25~"
    assert query_string({"b": "x/y z", "a": ""}) == "a=&b=x%2Fy%20z"


def test_credentials_show_nothing() -> None:
    assert repr(S3Credentials("AK1", "SK2", "TOKEN3")) == "S3Credentials()"
