"""What docs/http.md says is so."""

import json
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.formats import plan_api
from penstock.protocols.http.errors import STATUS
from tests.broker.http import HttpSite

PAGE: Final = (Path(__file__).parents[4] / "docs" / "http.md").read_text(encoding="utf-8")

PLACEHOLDERS: Final = {
    "{T}": "{N}/topics/{topic}",
    "{N}": "/v1/tenants/{tenant}/namespaces/{namespace}",
}


async def test_every_request_is_on_the_page_and_no_other(server: HttpSite) -> None:
    table = PAGE.partition("## Push")[0]
    for placeholder, path in PLACEHOLDERS.items():
        assert (
            f"`{placeholder}` stands for `{path}`" in table
            or f"`{placeholder}` for `{path}`" in table
        )
        table = table.replace(f" {placeholder}", f" {path}")
    listed = set(re.findall(r"`((?:GET|POST|DELETE) /\S+?)`", table))
    assert listed == {f"{route.method} {route.path}" for route in server.app._router.routes}


def test_every_status_is_on_the_page() -> None:
    told = set(map(int, re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)))
    assert set(STATUS.values()) <= told


async def test_the_examples_are_answered_as_the_page_says(server: HttpSite) -> None:
    await server.topic("score", "name:string", "points:int64", "team:uint64", partition="team")
    await server.topic("notes")
    examples: list[Any] = [
        json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    ]
    push, pushed, fetch, fetched, link, linked = examples
    assert (await server.ask("POST", "/v1/push", push)).plain == (200, pushed)
    assert (await server.ask("POST", "/v1/fetch", fetch)).plain == (200, fetched)
    assert msgspec.convert(link, plan_api.LinkRequest).epoch == 7
    assert msgspec.to_builtins(msgspec.convert(linked, plan_api.LinkReply)) == linked
