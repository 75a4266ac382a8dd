"""Pages of 25: a cursor names the item to go on from, and can name nothing else.

{base64 of "id|time"}      ?next=    what is older      ?previous=   what is newer
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple
from urllib.parse import quote_plus

from penstock.doors.http.channels.replies import BadRequest, from_moment, moment
from penstock.doors.http.channels.requests import ChannelRequest

PAGE_SIZE: Final = 25
_BOTH: Final = (
    "can not decide on pagination direction! Both after and before provided or pagination is nil"
)


class Place(NamedTuple):
    """An item of a list, by when it was made."""

    created_us: int
    id: str


class Wanted(NamedTuple):
    """Which page is asked for: the first without any place."""

    older: Place | None = None
    newer: Place | None = None


def wanted(request: ChannelRequest) -> Wanted:
    """What a request asks for; a cursor that cannot be read asks for the first page."""
    older, newer = request.single("next"), request.single("previous")
    if older and newer:
        raise BadRequest(_BOTH)
    return Wanted(_read(older), None if older else _read(newer))


def links(path: str, first: Place | None, last: Place | None, kept: str = "") -> dict[str, str]:
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


def _cursor(place: Place) -> str:
    text = f"{place.id}|{moment(place.created_us)}"
    return quote_plus(base64.b64encode(text.encode()).decode())


def _read(cursor: str | None) -> Place | None:
    if not cursor:
        return None
    try:
        id_, bar, told = base64.b64decode(cursor, validate=True).decode().rpartition("|")
        return Place(from_moment(told), id_) if bar else None
    except (binascii.Error, ValueError, OverflowError):
        return None
