"""Replies of the channel API: JSON as its clients expect it, paths, and errors as plain text."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlsplit, urlunsplit

import msgspec

from penstock.delivery.channels import PageCursor
from penstock.host.entropy import unique_name
from penstock.model.errors import PenstockError
from penstock.model.times import time_text_us
from penstock.protocols.http.errors import BadRequest, status_of
from penstock.protocols.http.reply import NO_CONTENT, Event, Reply, Send, start
from penstock.protocols.http.routes import PathTemplate, Segments

REQUEST_ID: Final = b"x-request-id"
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


class ChannelRefusal(PenstockError):
    """A request is refused with this status and text; nothing was done."""

    code = "channel_request_refused"

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class PlainRenderer:
    """Errors as plain text, or as a problem document if the client accepts that.

    A path that differs from a template by case or by a final slash is redirected. OPTIONS is served
    for every path; HEAD is not.
    """

    head_as_get = False
    empty_names = False

    def unknown_path(
        self, scope: Event, segments: Segments, templates: Sequence[PathTemplate]
    ) -> Reply:
        requested = segments[:-1] if segments[-1] == "" else segments
        for template in templates:
            path = _corrected(template.segments, requested)
            if path is not None:
                query = scope.get("query_string", b"")
                location = path.encode() + (b"?" + query if query else b"")
                return empty(301 if scope["method"] == "GET" else 307, (b"location", location))
        return text(404, "404 page not found\n")

    def other_method(self, scope: Event, methods: Collection[str]) -> Reply:
        allow = (b"allow", ", ".join(sorted((*methods, "OPTIONS"))).encode())
        if scope["method"] == "OPTIONS":
            return empty(200, allow)
        return text(405, "Method Not Allowed\n", allow)

    def failure(self, scope: Event, error: PenstockError) -> Reply:
        status = error.status if isinstance(error, ChannelRefusal) else status_of(error)
        message = error.reason if isinstance(error, BadRequest) else str(error)
        accepted = next((value for key, value in scope["headers"] if key == b"accept"), b"")
        if b"application/problem+json" in accepted:
            return problem(status, message)
        return text(status, message)

    async def send(self, scope: Event, send: Send, reply: Reply) -> None:
        """Send a reply with the id of its request, or with a new id."""
        body = reply.body
        assert isinstance(body, bytes)
        request_id = next((value for key, value in scope["headers"] if key == REQUEST_ID), None)
        headers = [(REQUEST_ID, request_id or unique_name().encode()), *reply.headers]
        if reply.status != NO_CONTENT:
            headers.append((b"content-length", b"%d" % len(body)))
        if body:
            headers.append((b"content-type", reply.content_type))
        changes = scope["method"] != "GET" and reply.status < 300
        await send(start(reply._replace(confirms=changes), headers))
        content = body if scope["method"] != "HEAD" else b""
        await send({"type": "http.response.body", "body": content})


def _corrected(template: Segments, segments: Segments) -> str | None:
    """The path with the case of the template, or None if it differs in more than that."""
    if len(template) != len(segments) or not all(
        expected.startswith("{") or expected == segment.lower()
        for expected, segment in zip(template, segments, strict=True)
    ):
        return None
    return "/".join(
        quote(segment, safe="") if expected.startswith("{") else expected
        for expected, segment in zip(template, segments, strict=True)
    )


def not_found() -> ChannelRefusal:
    return ChannelRefusal(404, NOT_FOUND_TEXT)


def text(status: int, message: str, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, message.encode(), headers, TEXT)


def empty(status: int, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, b"", headers)


def json_reply(value: Any, *headers: tuple[bytes, bytes]) -> Reply:
    """A reply of 200 with JSON that is safe inside HTML, and a line feed at its end."""
    data = msgspec.json.encode(value)
    for plain, escaped in _ESCAPED:
        data = data.replace(plain, escaped)
    return Reply(200, data + b"\n", headers)


def problem(status: int, message: str) -> Reply:
    """An error as a problem document (RFC 9457)."""
    document = {"type": "about:blank", "status": status, "title": message}
    return Reply(status, msgspec.json.encode(document), (), b"application/problem+json")


def http_date(us: int) -> str:
    return format_datetime(_EPOCH + timedelta(seconds=us // 1_000_000), usegmt=True)


def text_of(payload: bytes) -> str:
    """A payload as JSON text, with replacement characters for bytes that are not UTF-8."""
    return payload.decode("utf-8", "replace")


def public_url(url: str) -> str:
    """A callback URL for clients without a token: without user name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# -- paths and links


def producer_path(id_: str) -> str:
    return f"/producer/{_segment(id_)}"


def channel_path(id_: str) -> str:
    return f"/channel/{_segment(id_)}"


def consumer_path(channel_id: str, id_: str) -> str:
    return f"{channel_path(channel_id)}/consumer/{_segment(id_)}"


def message_path(channel_id: str, id_: str) -> str:
    return f"{channel_path(channel_id)}/message/{_segment(id_)}"


def scheduled_path(channel_id: str, id_: str) -> str:
    return f"{channel_path(channel_id)}/scheduled-message/{_segment(id_)}"


def job_path(channel_id: str, consumer_id: str, id_: str) -> str:
    return f"{consumer_path(channel_id, consumer_id)}/job/{id_}"


def _segment(text: str) -> str:
    return quote(text, safe="$&+=:@")


def page_links(path: str, cursors: Sequence[PageCursor], query: str = "") -> dict[str, str]:
    """Links to the pages beside the items with these cursors; none for an empty page.

    `query` is repeated in the links.
    """
    if not cursors:
        return {}
    prefix = f"{query}&" if query else ""
    return {
        "next": f"{path}?{prefix}next={_encoded_cursor(cursors[-1])}",
        "previous": f"{path}?{prefix}previous={_encoded_cursor(cursors[0])}",
    }


def _encoded_cursor(cursor: PageCursor) -> str:
    text = f"{cursor.id}|{time_text_us(cursor.created_us)}"
    return quote_plus(base64.b64encode(text.encode()).decode())
