import json
from typing import Any

import pytest

from penstock.doors.http.app import App
from penstock.doors.http.reply import Event
from penstock.model.metrics import single


async def _ask(
    method: str, path: str, ready: tuple[bool, dict[str, object]] = (True, {"logs": {"open": 3}})
) -> tuple[int, Any, dict[bytes, bytes]]:
    events: list[Event] = []

    async def receive() -> Event:
        raise AssertionError("the body is nobody's business")

    async def send(event: Event) -> None:
        events.append(event)

    app = App(lambda: ready, lambda: [single("penstock_x", "gauge", "An x.", 7)])
    await app({"type": "http", "method": method, "path": path}, receive, send)
    start, body = events
    headers = dict(start["headers"])
    if headers[b"content-type"] != b"application/json":
        return start["status"], body["body"], headers
    return start["status"], json.loads(body["body"] or b"null"), headers


async def test_health_is_ok_while_the_process_lives() -> None:
    status, body, _ = await _ask("GET", "/healthz", (False, {}))
    assert (status, body) == (200, {"status": "ok"})


async def test_ready_tells_about_the_logs() -> None:
    status, body, _ = await _ask("GET", "/readyz")
    assert (status, body) == (200, {"status": "ready", "logs": {"open": 3}})


async def test_metrics_are_text_for_a_scraper() -> None:
    status, body, headers = await _ask("GET", "/metrics")
    text = b"# HELP penstock_x An x.\n# TYPE penstock_x gauge\npenstock_x 7\n"
    assert (status, body) == (200, text)
    assert headers[b"content-type"] == b"text/plain; version=0.0.4; charset=utf-8"


async def test_not_ready_is_503_and_says_what_is_missing() -> None:
    status, body, _ = await _ask("GET", "/readyz", (False, {"message": "recovering", "logs": {}}))
    assert (status, body) == (503, {"status": "not ready", "message": "recovering", "logs": {}})


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_head_answers_like_get_without_the_body(path: str) -> None:
    get_status, _, get_headers = await _ask("GET", path)
    assert await _ask("HEAD", path) == (get_status, None, get_headers)


@pytest.mark.parametrize("path", ["/", "/nothing", "/healthz/", "/HEALTHZ", '/"quoted"'])
async def test_an_unknown_path_is_404_with_a_message(path: str) -> None:
    status, body, _ = await _ask("GET", path)
    assert (status, body) == (404, {"message": f"there is nothing at {path}"})


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_a_wrong_method_is_405_and_told_what_is_allowed(method: str) -> None:
    status, body, headers = await _ask(method, "/readyz")
    assert (status, body) == (405, {"message": f"/readyz takes GET, HEAD, not {method}"})
    assert headers[b"allow"] == b"GET, HEAD"
