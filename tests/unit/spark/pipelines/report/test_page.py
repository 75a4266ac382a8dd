from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser

import pytest

from penstock.spark.pipelines.report.page import POLICY, ReportSection, page, shown

NASTY = "<img src=x onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    """Parses a page into tags, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        told = dict(attrs)
        self.attributes |= told.keys()
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"] or ""

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def a_section(**changes: object) -> ReportSection:
    rows = [{"name": "a", "count": 1200}, {"name": "b", "count": 3}]
    made = ReportSection("Things", "What there is.", ["<svg></svg>"], rows, ["name", "count"], 2)
    return made._replace(**changes)  # type: ignore[arg-type]


def test_a_page_has_facts_tables_and_plots() -> None:
    text = page("Topic t", {"partitions": 3}, [], [a_section()])
    cells = Reader(text).cells
    for told in ("Topic t", "partitions", "3", "Things", "What there is.", "1\u202f200", "b"):
        assert told in cells
    assert "<svg></svg>" in text
    assert '<th class="n">count</th>' in text
    assert "<th>name</th>" in text


def test_everything_on_the_page_is_escaped() -> None:
    section = a_section(
        title=NASTY, note=NASTY, plots=[], rows=[{NASTY: NASTY}], columns=[NASTY], total=1
    )
    read = Reader(page(NASTY, {NASTY: NASTY}, [NASTY], [section]))
    assert "img" not in read.tags
    assert "onerror" not in read.attributes
    assert read.cells.count(NASTY) == 9


def test_a_page_refers_to_no_other_file() -> None:
    text = page("Topic t", {}, ["told"], [a_section()])
    read = Reader(text)
    assert read.policy == POLICY
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert not {"src", "href", "onload"} & read.attributes
    assert "url(" not in text
    assert "@import" not in text


def test_the_page_shows_hidden_rows_empty_tables_and_warnings() -> None:
    assert "1\u202f998 more rows" in page("t", {}, [], [a_section(total=2000)])
    assert "more rows" not in page("t", {}, [], [a_section()])
    assert "There are no rows." in page("t", {}, [], [a_section(rows=[], total=0)])
    assert '<p class="warn">jobs are missing' in page("t", {}, ["jobs are missing"], [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "none"),
        (True, "yes"),
        (1234567, "1\u202f234\u202f567"),
        (0.999, "0.999"),
        (datetime(2026, 11, 16, 1, 2, 3, tzinfo=UTC), "2026-11-16 01:02:03"),
        (datetime(2026, 11, 16, 1, tzinfo=timezone(timedelta(hours=1))), "2026-11-16 00:00:00"),
    ],
)
def test_values_are_formatted_for_people(value: object, expected: str) -> None:
    assert shown(value) == expected
