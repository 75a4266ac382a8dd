"""The channel API: which call a request is, and the manners its clients know.

Errors are plain text. A known path with another method is 405 with `Allow`, HEAD too; OPTIONS is
answered for every path; a path that differs by its last slash or by case is redirected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from penstock.delivery.channels.service import ChannelService
from penstock.doors.http.body import Bodies, ClientGone
from penstock.doors.http.channels.broadcast import BroadcastCalls
from penstock.doors.http.channels.dead_letters import DeadLetters
from penstock.doors.http.channels.entities import EntityPages
from penstock.doors.http.channels.extensions import Extensions
from penstock.doors.http.channels.gateway import Gateway
from penstock.doors.http.channels.jobs import JobCalls
from penstock.doors.http.channels.messages import MessagePages
from penstock.doors.http.channels.replies import Plain, empty, problem, text
from penstock.doors.http.channels.requests import ChannelRequest
from penstock.doors.http.channels.status import StatusPages
from penstock.doors.http.errors import status_of
from penstock.doors.http.reply import Event, Receive, Reply, Send
from penstock.host.entropy import unique_name
from penstock.model.errors import PenstockError

ROOTS: Final = frozenset(
    ("producers", "producer", "channels", "channel", "_status", "job-status", "dlq-status")
)
"""First segments of all paths of this API."""

REQUEST_ID: Final = b"x-request-id"
Handler = Callable[[ChannelRequest], Awaitable[Reply]]


class _Place(NamedTuple):
    segments: tuple[str, ...]
    methods: dict[str, Handler]


class ChannelApp:
    """Answers every request below ROOTS."""

    def __init__(
        self,
        service: ChannelService,
        bodies: Bodies,
        gateway: Gateway | None = None,
        shows_tokens: bool = True,
    ) -> None:
        self._gateway = gateway
        self._bodies = bodies
        places = _places(service, bodies, shows_tokens)
        self._places = [_Place(tuple(path.split("/")[1:]), found) for path, found in places.items()]

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        try:
            reply = await self._reply(scope, receive)
        except ClientGone:
            return
        except Plain as error:
            reply = _refused(scope, error.status, error.text)
        except PenstockError as error:
            reply = _refused(scope, status_of(error), str(error))
        await _answer(scope, send, reply)

    async def _reply(self, scope: Event, receive: Receive) -> Reply:
        if self._gateway is not None:
            receive = await self._gateway.checked(scope, receive, self._bodies)
        segments = _segments(scope)
        for place in self._places:
            path = _match(place.segments, segments)
            if path is not None:
                handler = place.methods.get(scope["method"])
                if handler is not None:
                    return await handler(ChannelRequest(scope, receive, path))
                return _other_method(scope["method"], place)
        return self._redirect(scope, segments) or text(404, "404 page not found\n")

    def _redirect(self, scope: Event, segments: tuple[str, ...]) -> Reply | None:
        """To the path that differs by case or by its last slash, if there is one."""
        bare = segments[:-1] if segments[-1] == "" else segments
        for place in self._places:
            if len(place.segments) == len(bare) and all(
                known.startswith("{") or known == given.lower()
                for known, given in zip(place.segments, bare, strict=True)
            ):
                meant = "/".join(
                    quote(given, safe="") if known.startswith("{") else known
                    for known, given in zip(place.segments, bare, strict=True)
                )
                query = scope.get("query_string", b"")
                where = f"/{meant}".encode() + (b"?" + query if query else b"")
                return empty(301 if scope["method"] == "GET" else 307, (b"location", where))
        return None


def _places(
    service: ChannelService, bodies: Bodies, shows_tokens: bool
) -> dict[str, dict[str, Handler]]:
    records, messages = EntityPages(service, bodies, shows_tokens), MessagePages(service)
    jobs, dead = JobCalls(service, bodies), DeadLetters(service, bodies)
    status, more = StatusPages(service), Extensions(service, bodies)
    channel, consumer = "/channel/{channel}", "/channel/{channel}/consumer/{consumer}"
    scheduled = f"{channel}/scheduled-message/{{message}}"
    return {
        f"{channel}/broadcast": {"POST": BroadcastCalls(service, bodies).broadcast},
        f"{consumer}/queued-jobs": {"GET": jobs.queued},
        f"{consumer}/job/{{job}}": {"GET": jobs.job, "POST": jobs.ask, "DELETE": jobs.delete},
        f"{consumer}/job/{{job}}/requeue-dead-job": {"POST": jobs.requeue},
        f"{consumer}/claim": {"POST": more.claim},
        f"{consumer}/job/{{job}}/extend": {"POST": more.extend},
        f"{consumer}/job/{{job}}/attempts": {"GET": more.attempts},
        f"{consumer}/attempts": {"GET": more.attempts},
        f"{consumer}/replay": {"POST": more.replay},
        f"{consumer}/secret": {"GET": more.secret},
        f"{consumer}/rotate-secret": {"POST": more.rotate},
        f"{consumer}/limits": {"GET": more.limits, "PUT": more.put_limits},
        f"{consumer}/disable": {"POST": more.disable},
        f"{consumer}/enable": {"POST": more.enable},
        f"{consumer}/dlq": {"GET": dead.show, "POST": dead.requeue, "DELETE": dead.purge},
        "/producers": {"GET": records.producers},
        "/producer/{producer}": {"GET": records.producer, "PUT": records.put_producer},
        "/channels": {"GET": records.channels},
        channel: {"GET": records.channel, "PUT": records.put_channel},
        f"{channel}/consumers": {"GET": records.consumers},
        consumer: {
            "GET": records.consumer,
            "PUT": records.put_consumer,
            "DELETE": records.delete_consumer,
        },
        f"{channel}/message/{{message}}": {"GET": messages.message},
        f"{channel}/messages": {"GET": messages.messages},
        f"{channel}/messages-status": {"GET": messages.messages_status},
        f"{channel}/scheduled-messages": {"GET": messages.scheduled_messages},
        scheduled: {"GET": messages.scheduled_message, "DELETE": messages.cancel},
        "/_status": {"GET": status.status},
        "/job-status": {"GET": status.job_status},
        "/dlq-status": {"GET": status.dlq_status},
    }


def _segments(scope: Event) -> tuple[str, ...]:
    raw = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
    try:
        decoded = raw.decode("ascii").split("/")[1:]
        return tuple(unquote(part, errors="strict") for part in decoded)
    except UnicodeDecodeError:
        raise Plain(400, "the path is not percent-encoded UTF-8") from None


def _match(known: tuple[str, ...], given: tuple[str, ...]) -> dict[str, str] | None:
    if len(known) != len(given):
        return None
    path: dict[str, str] = {}
    for name, part in zip(known, given, strict=True):
        if name.startswith("{"):
            if not part:
                return None
            path[name[1:-1]] = part
        elif name != part:
            return None
    return path


def _other_method(method: str, place: _Place) -> Reply:
    allow = (b"allow", ", ".join(sorted((*place.methods, "OPTIONS"))).encode())
    if method == "OPTIONS":
        return empty(200, allow)
    return text(405, "Method Not Allowed\n", allow)


def _refused(scope: Event, status: int, message: str) -> Reply:
    wanted = next((value for key, value in scope["headers"] if key == b"accept"), b"")
    if b"application/problem+json" in wanted:
        return problem(status, message)
    return text(status, message)


async def _answer(scope: Event, send: Send, reply: Reply) -> None:
    body = reply.body
    assert isinstance(body, bytes)
    given = next((value for key, value in scope["headers"] if key == REQUEST_ID), None)
    headers = [(REQUEST_ID, given or unique_name().encode()), *reply.headers]
    if reply.status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    if body:
        headers.append((b"content-type", reply.content_type))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})
