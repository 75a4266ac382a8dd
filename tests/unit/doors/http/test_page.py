"""What docs/http.md says is so."""

import json
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.doors.http.errors import STATUS
from penstock.formats import plan_api
from tests.unit.doors.http.asked import Door

PAGE: Final = (Path(__file__).parents[4] / "docs" / "http.md").read_text(encoding="utf-8")


async def test_every_request_is_on_the_page_and_no_other(door: Door) -> None:
    told = set(re.findall(r"`((?:GET|POST|DELETE) /\S+?)`", PAGE.partition("## Push")[0]))
    assert told == {f"{route.method} {route.path}" for route in door.app._router.routes}


def test_every_status_is_on_the_page() -> None:
    told = set(map(int, re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)))
    assert set(STATUS.values()) <= told


async def test_the_examples_are_answered_as_the_page_says(door: Door) -> None:
    await door.topic("score", "name:string", "points:int64", "team:uint64", partition="team")
    await door.topic("notes")
    examples: list[Any] = [
        json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    ]
    push, pushed, fetch, fetched, link, linked = examples
    assert (await door.ask("POST", "/v1/push", push)).plain == (200, pushed)
    assert (await door.ask("POST", "/v1/fetch", fetch)).plain == (200, fetched)
    assert msgspec.convert(link, plan_api.LinkRequest).epoch == 7
    assert msgspec.to_builtins(msgspec.convert(linked, plan_api.LinkReply)) == linked
