"""What the channel API answers with: JSON as its clients know it, and errors as plain text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

import msgspec

from penstock.doors.http.reply import Reply
from penstock.model.errors import PenstockError

TEXT: Final = b"text/plain; charset=utf-8"
NOT_FOUND_TEXT: Final = "Request resource not found"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPED: Final = (
    (b"&", b"\\u0026"),
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


class Plain(PenstockError):
    """A request is refused with this status and text; nothing was done."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class BadRequest(Plain):
    """Refused with 400."""

    def __init__(self, text: str) -> None:
        super().__init__(400, text)


def not_found() -> Plain:
    return Plain(404, NOT_FOUND_TEXT)


def text(status: int, message: str, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, message.encode(), headers, TEXT)


def empty(status: int, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, b"", headers)


def json(value: Any, *headers: tuple[bytes, bytes]) -> Reply:
    """200 with JSON that is safe inside HTML, and a line's end."""
    data = msgspec.json.encode(value)
    for plain, escaped in _ESCAPED:
        data = data.replace(plain, escaped)
    return Reply(200, data + b"\n", headers)


def problem(status: int, message: str) -> Reply:
    """An error for who asks for it as a document."""
    document = {"type": "about:blank", "status": status, "title": message}
    return Reply(status, msgspec.json.encode(document), (), b"application/problem+json")


def moment(us: int) -> str:
    """A time as RFC 3339, without zeros at its end."""
    whole = (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
    return whole.removesuffix("+00:00").rstrip("0").rstrip(".") + "Z"


def from_moment(told: str) -> int:
    """Microseconds of an RFC 3339 time; raises ValueError."""
    told = told.upper()
    if len(told) < 20 or told[10] not in "T ":
        raise ValueError(f"{told!r} is no time as in RFC 3339")
    read = datetime.fromisoformat(_without_nanoseconds(told))
    if read.tzinfo is None:
        raise ValueError(f"{told!r} is a time without a zone")
    return (read - _EPOCH) // timedelta(microseconds=1)


def http_date(us: int) -> str:
    return format_datetime(_EPOCH + timedelta(seconds=us // 1_000_000), usegmt=True)


def _without_nanoseconds(told: str) -> str:
    """At most six digits of a second: what Python reads, and what we keep."""
    lead, dot, rest = told.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return f"{lead}{dot}{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}" if dot else told
