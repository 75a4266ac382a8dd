import pytest

from penstock.doors.http.app import App
from penstock.doors.http.backend import Backend
from penstock.doors.http.body import Bodies
from penstock.topics.registry import LocalRegistry
from tests.unit.doors.http.asked import Answer, Client, Door


async def test_health_is_ok_while_the_process_lives(door: Door) -> None:
    assert (await door.ask("GET", "/healthz")).plain == (200, {"status": "ok"})


async def test_ready_tells_about_the_logs(door: Door) -> None:
    assert (await door.ask("GET", "/readyz")).plain == (
        200,
        {"status": "ready", "logs": {"open": 3}},
    )


async def test_metrics_are_text_for_a_scraper(door: Door) -> None:
    status, body, headers = await door.ask("GET", "/metrics")
    text = b"# HELP penstock_x An x.\n# TYPE penstock_x gauge\npenstock_x 7\n"
    assert (status, body) == (200, text)
    assert headers[b"content-type"] == b"text/plain; version=0.0.4; charset=utf-8"


async def test_not_ready_is_503_and_says_what_is_missing(door: Door) -> None:
    app = App(lambda: (False, {"message": "recovering", "logs": {}}), list, _fetching_only(door))
    assert (await _ask(app, "GET", "/readyz")).plain == (
        503,
        {"status": "not ready", "message": "recovering", "logs": {}},
    )


async def test_a_node_that_only_fetches_has_no_push(door: Door) -> None:
    app = App(lambda: (True, {}), list, _fetching_only(door))
    assert (await _ask(app, "POST", "/v1/push")).plain == (
        421,
        {"message": "this node only fetches; push to a broker"},
    )
    assert (await _ask(app, "POST", "/v1/fetch")).status == 415
    assert (await _ask(app, "GET", "/openapi.json")).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/tenants"])
async def test_head_answers_like_get_without_the_body(door: Door, path: str) -> None:
    get = await door.ask("GET", path)
    assert await door.ask("HEAD", path) == (get.status, None, get.headers)


@pytest.mark.parametrize("path", ["/", "/nothing", "/healthz/", "/HEALTHZ", '/"quoted"'])
async def test_an_unknown_path_is_404_with_a_message(door: Door, path: str) -> None:
    assert (await door.ask("GET", path)).plain == (
        404,
        {"message": f"there is nothing at {path}"},
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_a_wrong_method_is_405_and_told_what_is_allowed(door: Door, method: str) -> None:
    status, body, headers = await door.ask(method, "/readyz")
    assert (status, body) == (405, {"message": f"/readyz takes GET, HEAD, not {method}"})
    assert headers[b"allow"] == b"GET, HEAD"


def _fetching_only(door: Door) -> Backend:
    topics = door.served.topics
    registry = LocalRegistry(topics, "")
    return Backend(topics, registry, door.served.source, door.fetcher, Bodies(1, 1))


async def _ask(app: App, method: str, path: str) -> Answer:
    return await Client(app, {"method": method, "path": path}, b"").answer()
