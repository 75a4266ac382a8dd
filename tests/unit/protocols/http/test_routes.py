from typing import Any

import pytest

from penstock.formats.api import ErrorReply
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Event, Reply
from penstock.protocols.http.routes import JsonRenderer, Request, Route, Router, header_text
from tests.broker.http import received_request


async def _never() -> Event:
    raise AssertionError("nobody reads the body here")


def _router() -> Router:
    def route(method: str, path: str) -> Route:
        async def handler(request: Request) -> Reply:
            return Reply(200, {"route": f"{method} {path}", **request.path})

        return Route(method, path, handler, "", {})

    return Router(
        [
            route("GET", "/v1/x"),
            route("POST", "/v1/x"),
            route("GET", "/v1/{one}/y/{two}"),
            route("DELETE", "/v1/{one}"),
        ],
        JsonRenderer(),
    )


async def _ask(method: str, path: str, raw: bytes | None = None) -> Reply:
    scope: dict[str, Any] = {"method": method, "path": path}
    if raw is not None:
        scope["raw_path"] = raw
    return await _router().handle(scope, _never)


@pytest.mark.parametrize(
    ("method", "path", "raw", "body"),
    [
        ("GET", "/v1/x", None, {"route": "GET /v1/x"}),
        ("HEAD", "/v1/x", None, {"route": "GET /v1/x"}),
        ("POST", "/v1/x", None, {"route": "POST /v1/x"}),
        ("DELETE", "/v1/a", None, {"route": "DELETE /v1/{one}", "one": "a"}),
        (
            "GET",
            "/v1/a/y/\u00fc",
            b"/v1/a/y/%C3%BC",
            {"route": "GET /v1/{one}/y/{two}", "one": "a", "two": "\u00fc"},
        ),
        (
            "GET",
            "/v1/a/b/y/c",
            b"/v1/a%2Fb/y/c",
            {"route": "GET /v1/{one}/y/{two}", "one": "a/b", "two": "c"},
        ),
    ],
)
async def test_a_request_finds_its_handler(
    method: str, path: str, raw: bytes | None, body: dict[str, str]
) -> None:
    assert (await _ask(method, path, raw))[:2] == (200, body)


@pytest.mark.parametrize("path", ["/", "/v1/x/", "/v1", "/v1/a/z/b", "/v1/a/y/b/"])
async def test_what_is_not_there_is_404(path: str) -> None:
    assert (await _ask("GET", path))[:2] == (
        404,
        ErrorReply(f"there is no resource at {path}", "not_found"),
    )


async def test_another_method_is_405_and_told_what_is_allowed() -> None:
    reply = await _ask("PUT", "/v1/x")
    assert reply[:2] == (
        405,
        ErrorReply("/v1/x allows GET, HEAD, POST, not PUT", "method_not_allowed"),
    )
    assert reply.headers == ((b"allow", b"GET, HEAD, POST"),)
    assert (await _ask("HEAD", "/v1/a")).headers == ((b"allow", b"DELETE"),)


async def test_a_path_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(BadRequest, match="the path is not percent-encoded UTF-8"):
        await _ask("DELETE", "/v1/\ufffd", b"/v1/%ff")


@pytest.mark.parametrize(
    ("query", "known", "given"),
    [
        (b"", (), {}),
        (b"a=1&b=", ("a", "b", "c"), {"a": "1", "b": ""}),
        (b"a=x%20y+z", ("a",), {"a": "x y z"}),
    ],
)
def test_query_parameters_are_decoded(
    query: bytes, known: tuple[str, ...], given: dict[str, str]
) -> None:
    assert Request({"query_string": query}, _never, {}).query(*known) == given


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (b"x=1", "unknown query parameter 'x'; known: a"),
        (b"a=1&a=2", "query parameter 'a' is repeated"),
        (b"a=%ff", "the query is not percent-encoded UTF-8"),
        (b"a=\xff", "the query is not percent-encoded UTF-8"),
    ],
)
def test_other_query_parameters_are_refused(query: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Request({"query_string": query}, _never, {}).query("a")
    assert str(caught.value) == f"bad request: {message}"


def test_query_parameters_and_headers_are_read_leniently_by_name() -> None:
    request = received_request(b"", b"a=1&a=2&b=", (b"x", b"one"), (b"x", b"two"))
    assert (request.values("a"), request.value("a"), request.value("c")) == (["1", "2"], "1", None)
    assert (request.values("b"), request.header(b"x"), request.header(b"y")) == ([""], "one", None)


def test_a_header_is_utf8_if_it_is_valid_and_latin_1_if_not() -> None:
    assert header_text("ä".encode()) == "ä"
    assert header_text(b"\xe4") == "ä"
