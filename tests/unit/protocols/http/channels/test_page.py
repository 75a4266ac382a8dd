"""docs/channels.md and docs/formats.md say what the code does."""

import re
from pathlib import Path
from typing import Final
from unittest.mock import MagicMock

from penstock.config import SETTINGS
from penstock.ledger.job_records import CHANGE, SNAPSHOT, START, Change, JobSnapshot, Start
from penstock.protocols.http.channels.routes import channel_router

DOCS: Final = Path(__file__).parents[5] / "docs"
PAGE: Final = (DOCS / "channels.md").read_text(encoding="utf-8")


def test_every_setting_is_on_the_page_and_no_other() -> None:
    keys = {key for key in SETTINGS if key.startswith("channels.")}
    named = set(re.findall(r"`(channels\.[a-z_.]+)`", PAGE))
    assert named <= keys
    for key in keys - named:
        assert f"`.{key.rpartition('.')[2]}`" in PAGE, key


def test_every_route_is_on_the_page() -> None:
    for route in channel_router(MagicMock(), MagicMock()).routes:
        last = [part for part in route.path.split("/") if not part.startswith("{")][-1]
        assert last in PAGE, route.path


def test_the_entries_of_settle_frames_are_on_the_page() -> None:
    rows = (DOCS / "formats.md").read_text(encoding="utf-8")
    assert f"| change | {CHANGE}, {', '.join(Change._fields)} |" in rows
    assert f"| snapshot | {SNAPSHOT}, {', '.join(JobSnapshot._fields)} |" in rows
    assert f"| start | {START}, {Start._fields[0]}, {Start._fields[1]}, excluded" in rows
