"""One HTML page of tables and plots that refers to nothing outside itself.

Whatever is shown is text: names and values come from messages, and none of it is ever markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1b2733; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #d8dee4; padding: .2rem .7rem; text-align: left;
  overflow-wrap: anywhere }
th.n, td.n { text-align: right; white-space: nowrap }
p.note { color: #57606a; margin: .2rem 0 } p.warn { color: #9a3412 }
svg { display: block; margin: .8rem 0; max-width: 100%; height: auto }
svg rect { fill: #2f6f9f } svg rect:hover { fill: #d97706 }
svg text { font: 12px system-ui, sans-serif; fill: #1b2733 } svg text.end { text-anchor: end }
svg text.title { font-weight: 600 } svg line.scale { stroke: #d8dee4 }
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser that obeys it fetches and runs nothing."""


class Section(NamedTuple):
    """A statistic as the page shows it."""

    title: str
    note: str
    plots: Sequence[str]
    """SVG, as charts.py makes it."""
    rows: Sequence[Mapping[str, object]]
    columns: Sequence[str]
    total: int
    """Rows of the whole table."""


def page(
    title: str, facts: Mapping[str, object], warnings: Sequence[str], sections: Sequence[Section]
) -> str:
    """The page as text."""
    warned = "".join(f'<p class="warn">{escape(text)}</p>' for text in warnings)
    told = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(shown(value))}</td></tr>"
        for name, value in facts.items()
    )
    shell = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
    )
    body = "\n".join(_section(section) for section in sections)
    return (
        f"{shell}\n<body><h1>{escape(title)}</h1>\n{warned}"
        f"<table>{told}</table>\n{body}\n</body></html>\n"
    )


def shown(value: object) -> str:
    """A value as people read it; times are UTC."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return str(value)


def _section(section: Section) -> str:
    head = f"<h2>{escape(section.title)}</h2>\n"
    note = f'<p class="note">{escape(section.note)}</p>\n'
    if not section.rows:
        return f'{head}{note}<p class="note">There is nothing to tell.</p>'
    rest = section.total - len(section.rows)
    more = f'<p class="note">{shown(rest)} more rows are in the table.</p>' if rest > 0 else ""
    return f"{head}{note}{''.join(section.plots)}\n{_table(section)}{more}"


def _table(section: Section) -> str:
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
