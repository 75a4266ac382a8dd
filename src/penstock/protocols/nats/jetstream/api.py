"""The JetStream API: dispatches requests to `$JS.API.` subjects to endpoints.

The first tokens of a subject name an endpoint; the tokens after them are its arguments. An error is
sent as the reply type that the endpoint's clients expect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from penstock.host.tasks import Tasks
from penstock.model.errors import PenstockError
from penstock.protocols.nats.client import ConnectedClient
from penstock.streams import Stream, Streams
from penstock.wire.jetstream import errors, levels
from penstock.wire.jetstream.documents import error_reply
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.parser import Publishes

PREFIX: Final = b"$JS.API."
REQUESTS_MAX: Final = 1024
"""The most requests in progress; more are refused."""

_events = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to the API."""

    tokens: list[str]
    """The tokens of the subject that follow the endpoint's name."""
    body: bytes
    headers: bytes
    reply: bytes
    client: ConnectedClient


Answer = bytes | None
Handler = Callable[[ApiRequest], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """The handler of the requests of one name, and the number of tokens it accepts."""

    handle: Handler
    response: str
    """The type of the reply, such as `stream_info_response`."""
    tokens_min: int = 0
    tokens_max: int = 0
    confirms: bool = False
    """Whether a reply confirms a change of the stream's messages."""


class Api:
    """Dispatches requests to endpoints; a target of the exchange."""

    def __init__(self, reply: Callable[[bytes, bytes, bool], object]) -> None:
        """`reply` sends a reply to a subject; its last argument: whether it confirms a change."""
        self._reply = reply
        self._endpoints: dict[str, ApiEndpoint] = {}
        self._tasks = Tasks()
        self.total = self.errors = 0

    def counted(self) -> tuple[int, int]:
        """The number of requests, and how many of them failed."""
        return self.total, self.errors

    def add(self, endpoints: Mapping[str, ApiEndpoint]) -> None:
        self._endpoints.update(endpoints)

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        blocks = run.headers or [b""] * len(run.payloads)
        rows = zip(run.subjects, run.replies, blocks, run.payloads, strict=True)
        for subject, reply, block, payload in rows:
            self._request(sender, subject, reply, block, payload)

    async def drained(self) -> None:
        """Wait until every request in progress has its reply."""
        await self._tasks.drain()

    def _request(
        self, sender: ConnectedClient, subject: bytes, reply: bytes, block: bytes, body: bytes
    ) -> None:
        endpoint, tokens = self._find(subject)
        if endpoint is None or not reply:
            return
        self.total += 1
        request = ApiRequest(tokens, body, block, reply, sender)
        try:
            answer = self._handle(endpoint, request)
        except PenstockError as error:
            self._refuse(endpoint, reply, error)
            return
        if isinstance(answer, bytes):
            self._reply(reply, answer, endpoint.confirms)
        elif answer is not None:
            self._tasks.start(self._reply_later(endpoint, reply, answer))

    def _handle(self, endpoint: ApiEndpoint, request: ApiRequest) -> Answer | Awaitable[Answer]:
        if levels.refuses(request.headers):
            raise errors.API_LEVEL_REQUIRED.error()
        if not endpoint.tokens_min <= len(request.tokens) <= endpoint.tokens_max:
            raise errors.BAD_REQUEST.error()
        if len(self._tasks) >= REQUESTS_MAX:
            raise errors.INSUFFICIENT_RESOURCES.error()
        return endpoint.handle(request)

    async def _reply_later(
        self, endpoint: ApiEndpoint, reply: bytes, answer: Awaitable[Answer]
    ) -> None:
        try:
            reply_body = await answer
        except PenstockError as error:
            self._refuse(endpoint, reply, error)
        else:
            if reply_body is not None:
                self._reply(reply, reply_body, endpoint.confirms)

    def _refuse(self, endpoint: ApiEndpoint, reply: bytes, error: PenstockError) -> None:
        self.errors += 1
        if not isinstance(error, ApiError):
            error = errors.STREAM_FAILED.error(str(error))
        self._reply(reply, error_reply(endpoint.response, error), False)

    def _find(self, subject: bytes) -> tuple[ApiEndpoint | None, list[str]]:
        """The endpoint with the longest name that begins the subject, and the tokens after it."""
        tokens = subject[len(PREFIX) :].decode("utf-8", "replace").split(".")
        for count in (3, 2, 1):
            endpoint = self._endpoints.get(".".join(tokens[:count]))
            if endpoint is not None and count <= len(tokens):
                return endpoint, tokens[count:]
        return None, tokens


async def requested_stream(streams: Streams, request: ApiRequest) -> Stream:
    """The stream that the first token of a request names; raises ApiError if there is none."""
    stream = await streams.find(request.tokens[0])
    if stream is None:
        raise errors.STREAM_NOT_FOUND.error()
    return stream
