"""Pages of 25: a cursor names the item to go on from, and can name nothing else.

{base64 of "id|time"}      ?next=    what is older      ?previous=   what is newer
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple
from urllib.parse import quote_plus

from penstock.model.times import parse_time_us, time_text_us
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.routes import Request

PAGE_SIZE: Final = 25
_BOTH: Final = (
    "can not decide on pagination direction! Both after and before provided or pagination is nil"
)


class PageCursor(NamedTuple):
    """An item of a list, by when it was made."""

    created_us: int
    id: str


class PageRequest(NamedTuple):
    """Which page is asked for: the first without any place."""

    older: PageCursor | None = None
    newer: PageCursor | None = None


def wanted(request: Request) -> PageRequest:
    """What a request asks for; a cursor that cannot be read asks for the first page."""
    older, newer = request.value("next"), request.value("previous")
    if older and newer:
        raise BadRequest(_BOTH)
    return PageRequest(_read(older), None if older else _read(newer))


def links(
    path: str, first: PageCursor | None, last: PageCursor | None, kept: str = ""
) -> dict[str, str]:
    """Where the neighbours of a page are; nothing for an empty one. `kept` is the rest of the
    query.
    """
    if first is None or last is None:
        return {}
    ahead = f"{kept}&" if kept else ""
    return {
        "next": f"{path}?{ahead}next={_cursor(last)}",
        "previous": f"{path}?{ahead}previous={_cursor(first)}",
    }


def _cursor(place: PageCursor) -> str:
    text = f"{place.id}|{time_text_us(place.created_us)}"
    return quote_plus(base64.b64encode(text.encode()).decode())


def _read(cursor: str | None) -> PageCursor | None:
    if not cursor:
        return None
    try:
        id_, bar, told = base64.b64decode(cursor, validate=True).decode().rpartition("|")
        return PageCursor(parse_time_us(told), id_) if bar else None
    except (binascii.Error, ValueError, OverflowError):
        return None
