"""The HTML page of a report: tables and charts, without references to other files.

Names and values come from messages; all of them are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from string import Template
from typing import Final, NamedTuple

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: the browser neither loads nor runs anything."""
_TEMPLATE: Final = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


class ReportSection(NamedTuple):
    """A statistic on the page."""

    title: str
    note: str
    plots: Sequence[str]
    """Charts as SVG."""
    rows: Sequence[Mapping[str, object]]
    columns: Sequence[str]
    total: int
    """Number of rows of the whole table."""


def page(
    title: str,
    facts: Mapping[str, object],
    warnings: Sequence[str],
    sections: Sequence[ReportSection],
) -> str:
    """The page as HTML."""
    warning_lines = "".join(f'<p class="warn">{escape(text)}</p>' for text in warnings)
    fact_rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(shown(value))}</td></tr>"
        for name, value in facts.items()
    )
    return _TEMPLATE.substitute(
        policy=POLICY,
        title=escape(title),
        warnings=warning_lines,
        facts=fact_rows,
        sections="\n".join(_section(section) for section in sections),
    )


def shown(value: object) -> str:
    """A value as text; times are in UTC."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return str(value)


def _section(section: ReportSection) -> str:
    head = f"<h2>{escape(section.title)}</h2>\n"
    note = f'<p class="note">{escape(section.note)}</p>\n'
    if not section.rows:
        return f'{head}{note}<p class="note">There are no rows.</p>'
    hidden = section.total - len(section.rows)
    more = f'<p class="note">{shown(hidden)} more rows are in the table.</p>' if hidden > 0 else ""
    return f"{head}{note}{''.join(section.plots)}\n{_table(section)}{more}"


def _table(section: ReportSection) -> str:
    numeric = {name: all(_is_number(row[name]) for row in section.rows) for name in section.columns}
    heads = "".join(_cell("th", name, numeric[name]) for name in section.columns)
    rows = (
        "".join(_cell("td", shown(row[name]), numeric[name]) for name in section.columns)
        for row in section.rows
    )
    return f"<table><tr>{heads}</tr>\n{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(tag: str, text: str, numeric: bool) -> str:
    kind = ' class="n"' if numeric else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"
