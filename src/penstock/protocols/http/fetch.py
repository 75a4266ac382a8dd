"""POST /v1/fetch: returns messages of several partitions by offset, waiting for them if needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw

from penstock.formats import api, arrow_stream
from penstock.model.errors import FetchInvalid, Overloaded, PenstockError
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset
from penstock.protocols.http import body, requests
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import ClientGone, demand_json, header
from penstock.protocols.http.errors import BadRequest, owner_of
from penstock.protocols.http.reply import Receive, Reply
from penstock.protocols.http.routes import Request, Route
from penstock.protocols.http.shown import shown, text
from penstock.topics import FETCH_BYTES_MAX, Fetched, FetchState

TOPICS_MAX: Final = 1000
"""Limit of the topics and partitions of one request."""
INLINE_BYTES_MAX: Final = 64 << 10
INLINE_MESSAGES_MAX: Final = 1000
"""A reply within both limits is encoded on the event loop, a larger one in a thread."""
CHUNK_BYTES: Final = 256 << 10
"""Minimum size of the chunks of a large reply."""

_DECODER: Final = msgspec.json.Decoder(api.FetchRequest)
_LIMITS: Final = ("timeout_ms", "min_messages", "max_messages")
_T = TypeVar("_T")


class Fetches:
    """Serves fetch requests; `hurry` makes waiting fetches return with the messages they have."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._states: set[FetchState] = set()
        self._hurried = False

    def routes(self) -> list[Route]:
        replies = {200: api.FetchReply, **dict.fromkeys((400, 413, 415, 429), api.ErrorReply)}
        summary = "Fetch messages by offset from several topics, waiting at their heads."
        return [
            Route("POST", "/v1/fetch", self.fetch, summary, replies, api.FetchRequest, arrow=True)
        ]

    def hurry(self) -> None:
        """Let no fetch wait at the head from now on."""
        self._hurried = True
        for state in self._states:
            state.hurry()

    async def fetch(self, request: Request) -> Reply:
        request.query()
        demand_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            asked = body.decode(_DECODER, data)
        namespace = await requests.known_namespace(self._backend.admin, asked.namespace)
        wanted = [_wanted(namespace, topic) for topic in _some(asked.topics)]
        state = _state(asked)
        self._states.add(state)
        try:
            if self._hurried:
                state.hurry()
            work = self._fetch(wanted, state)
            answers = await unless_gone(request.receive, work)
        finally:
            self._states.discard(state)
        small = (
            state.collected <= INLINE_MESSAGES_MAX
            and FETCH_BYTES_MAX - state.bytes_left <= INLINE_BYTES_MAX
        )
        if api.ARROW_STREAM in header(request.scope, b"accept"):
            streams = await _called(small, lambda: b"".join(map(_stream, answers)))
            return Reply(200, streams, content_type=api.ARROW_STREAM.encode())
        return Reply(200, b"".join(_json(answers)) if small else _chunks(_json(answers)))

    async def _fetch(
        self, wanted: list[tuple[TopicName, PartitionValue | None, Offset]], state: FetchState
    ) -> list[Fetched | api.FetchError]:
        """Fetch from each partition, in order; raises Overloaded if any of them does."""
        if len(wanted) == 1:
            return [await self._one(*wanted[0], state)]
        try:
            async with asyncio.TaskGroup() as tasks:
                started = [tasks.create_task(self._one(*one, state)) for one in wanted]
        except* Overloaded as refused:
            raise refused.exceptions[0] from None
        return [task.result() for task in started]

    async def _one(
        self, name: TopicName, value: PartitionValue | None, offset: Offset, state: FetchState
    ) -> Fetched | api.FetchError:
        try:
            return await self._backend.fetcher.fetch(name, value, offset, state)
        except Overloaded:
            raise
        except PenstockError as error:
            owner = owner_of(error)
            return api.FetchError(name.full, shown(value), str(error), error.code, owner)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of `work`, which is cancelled when the client disconnects.

    Raises ClientGone.
    """
    task, gone = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        watcher.cancel()


def _some(topics: list[api.FetchTopic]) -> list[api.FetchTopic]:
    if not topics:
        raise BadRequest("no topics provided")
    if len(topics) > TOPICS_MAX:
        raise BadRequest(f"{len(topics)} topics in one request, the limit is {TOPICS_MAX}")
    return topics


def _wanted(
    namespace: Namespace, asked: api.FetchTopic
) -> tuple[TopicName, PartitionValue | None, Offset]:
    name = requests.topic_within(namespace, asked.topic)
    return name, requests.partition(asked.partition_value), Offset(asked.offset)


def _state(asked: api.FetchRequest) -> FetchState:
    given = {name: getattr(asked, name) for name in _LIMITS}
    limits = {name: limit for name, limit in given.items() if limit is not UNSET}
    try:
        return FetchState(**limits, fetches=len(asked.topics))
    except FetchInvalid as error:
        raise FetchInvalid(f"invalid parameter: {error}") from None


def _head(fetched: Fetched) -> bytes:
    """The JSON of a result up to its messages."""
    return msgspec.json.encode(
        api.FetchSuccess(
            fetched.topic.name.full,
            shown(fetched.value),
            fetched.start_offset,
            fetched.end_offset,
            Raw(b"[]"),
        )
    )[: -len(b"]}")]


def _json(answers: list[Fetched | api.FetchError]) -> Iterator[bytes]:
    """The JSON of the reply, in pieces."""
    yield b'{"topics":['
    for index, answer in enumerate(answers):
        yield b"," if index else b""
        if isinstance(answer, api.FetchError):
            yield msgspec.json.encode(answer)
            continue
        yield _head(answer)
        last = b""
        for batch in answer.batches:
            for piece in text(answer.topic, batch):
                yield last
                last = piece
        yield last.removesuffix(b",")
        yield b"]}"
    yield b"]}"


def _stream(answer: Fetched | api.FetchError) -> bytes:
    """A result as an Arrow stream; the metadata of its schema has the result without messages."""
    if isinstance(answer, api.FetchError):
        return arrow_stream.write(pa.schema([]), [], msgspec.json.encode(answer))
    note = _head(answer).removesuffix(b',"messages":[') + b"}"
    rows = (batch.to_arrow() for batch in answer.batches)
    return arrow_stream.write(answer.schema, rows, note)


async def _called(inline: bool, make: Callable[[], _T]) -> _T:
    return make() if inline else await asyncio.to_thread(make)


async def _chunks(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(_next_chunk, pieces):
        yield chunk


def _next_chunk(pieces: Iterator[bytes]) -> bytes:
    """Join pieces up to at least CHUNK_BYTES; returns nothing when no pieces are left."""
    taken: list[bytes] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            break
    return b"".join(taken)
