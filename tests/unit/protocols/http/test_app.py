import re

import pytest

from penstock.protocols.http.app import App
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import Bodies
from penstock.topics import LocalOffsets
from tests.broker.http import Answer, Client, HttpSite


async def test_health_is_ok_while_the_process_lives(server: HttpSite) -> None:
    assert (await server.ask("GET", "/healthz")).plain == (200, {"status": "ok"})


async def test_ready_tells_about_the_logs(server: HttpSite) -> None:
    assert (await server.ask("GET", "/readyz")).plain == (
        200,
        {"status": "ready", "logs": {"open": 3}},
    )


async def test_metrics_are_text_for_a_scraper(server: HttpSite) -> None:
    status, body, headers = await server.ask("GET", "/metrics")
    text = b"# HELP penstock_x An x.\n# TYPE penstock_x gauge\npenstock_x 7\n"
    assert (status, body) == (200, text)
    assert headers[b"content-type"] == b"text/plain; version=0.0.4; charset=utf-8"


async def test_no_request_that_changes_something_is_taken_without_its_content_type(
    server: HttpSite,
) -> None:
    changing = [
        route for route in server.app._router.routes if route.method not in ("GET", "DELETE")
    ]
    assert len(changing) >= 8
    for route in changing:
        path = re.sub(r"\{\w+\}", "default", route.path)
        for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = await server.start(route.method, path, b"{}", content_type=kind).answer()
            assert answer.status == 415, (route, kind)


async def test_not_ready_is_503_and_says_what_is_missing(server: HttpSite) -> None:
    app = App(lambda: (False, {"message": "recovering", "logs": {}}), list, _fetching_only(server))
    assert (await _ask(app, "GET", "/readyz")).plain == (
        503,
        {"status": "not ready", "message": "recovering", "logs": {}},
    )


async def test_a_node_that_only_fetches_has_no_push(server: HttpSite) -> None:
    app = App(lambda: (True, {}), list, _fetching_only(server))
    assert (await _ask(app, "POST", "/v1/push")).plain == (
        421,
        {"message": "this node only fetches; push to a broker", "code": "fetch_only"},
    )
    assert (await _ask(app, "POST", "/v1/fetch")).status == 415
    assert (await _ask(app, "GET", "/openapi.json")).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/tenants"])
async def test_head_answers_like_get_without_the_body(server: HttpSite, path: str) -> None:
    get = await server.ask("GET", path)
    assert await server.ask("HEAD", path) == (get.status, None, get.headers)


@pytest.mark.parametrize("path", ["/", "/nothing", "/healthz/", "/HEALTHZ", '/"quoted"'])
async def test_an_unknown_path_is_404_with_a_message(server: HttpSite, path: str) -> None:
    assert (await server.ask("GET", path)).plain == (
        404,
        {"message": f"there is no resource at {path}", "code": "not_found"},
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_a_wrong_method_is_405_and_told_what_is_allowed(
    server: HttpSite, method: str
) -> None:
    status, body, headers = await server.ask(method, "/readyz")
    assert (status, body) == (
        405,
        {
            "message": f"/readyz allows GET, HEAD, not {method}",
            "code": "method_not_allowed",
        },
    )
    assert headers[b"allow"] == b"GET, HEAD"


def _fetching_only(server: HttpSite) -> Backend:
    served = server.served
    offsets = LocalOffsets(served.topics, "")
    return Backend(served.admin, offsets, served.source, server.fetcher, Bodies(1, 1))


async def _ask(app: App, method: str, path: str) -> Answer:
    return await Client(app, {"method": method, "path": path}, b"").answer()
