"""POST /v1/fetch: returns messages of several partitions by offset, and waits for new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw

from penstock.formats import api, arrow_stream
from penstock.host.tasks import Tasks
from penstock.model.errors import FetchInvalid, Overloaded, PenstockError
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset
from penstock.protocols.http import body, requests
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import ClientGone, header, require_json
from penstock.protocols.http.errors import BadRequest, owner_of
from penstock.protocols.http.message_json import messages_json, partition_json
from penstock.protocols.http.reply import Receive, Reply
from penstock.protocols.http.routes import Request, Route
from penstock.topics import FETCH_BYTES_MAX, Fetched, FetchState

TOPICS_MAX: Final = 1000
"""Limit of the number of partitions in one request."""
INLINE_BYTES_MAX: Final = 64 << 10
INLINE_MESSAGES_MAX: Final = 1000
"""A reply within both limits is encoded on the event loop, a larger one in a thread."""
CHUNK_BYTES: Final = 256 << 10
"""Minimum size of the chunks of a large reply."""

_DECODER: Final = msgspec.json.Decoder(api.FetchRequest)
_LIMITS: Final = ("timeout_ms", "min_messages", "max_messages")
_T = TypeVar("_T")
_Position: TypeAlias = tuple[TopicName, PartitionValue | None, Offset]
_Result: TypeAlias = Fetched | api.FetchError


class Fetches:
    """Serves fetch requests."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._states: set[FetchState] = set()
        self._finishing_early = False

    def routes(self) -> list[Route]:
        replies = {200: api.FetchReply, **dict.fromkeys((400, 413, 415, 429), api.ErrorReply)}
        summary = "Fetch messages by offset from several topics, and wait for new ones."
        return [
            Route("POST", "/v1/fetch", self.fetch, summary, replies, api.FetchRequest, arrow=True)
        ]

    def finish_early(self) -> None:
        """Let current and later fetches return with the messages that exist, without waiting."""
        self._finishing_early = True
        for state in self._states:
            state.hurry()

    async def fetch(self, request: Request) -> Reply:
        request.query()
        require_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            sent = body.decode(_DECODER, data)
        namespace = await requests.known_namespace(self._backend.admin, sent.namespace)
        positions = [_position(namespace, topic) for topic in _checked(sent.topics)]
        state = _state(sent)
        self._states.add(state)
        try:
            if self._finishing_early:
                state.hurry()
            work = self._fetch(positions, state)
            results = await unless_gone(request.receive, work)
        finally:
            self._states.discard(state)
        small = (
            state.collected <= INLINE_MESSAGES_MAX
            and FETCH_BYTES_MAX - state.bytes_left <= INLINE_BYTES_MAX
        )
        if api.ARROW_STREAM in header(request.scope, b"accept"):
            streams = await _called(small, lambda: b"".join(map(_stream, results)))
            return Reply(200, streams, content_type=api.ARROW_STREAM.encode())
        return Reply(200, b"".join(_json(results)) if small else _chunks(_json(results)))

    async def _fetch(self, positions: list[_Position], state: FetchState) -> list[_Result]:
        """Fetch from each partition; the results are in the order of `positions`.

        Raises Overloaded if a fetch of any partition does.
        """
        if len(positions) == 1:
            return [await self._fetch_partition(*positions[0], state)]
        try:
            async with asyncio.TaskGroup() as tasks:
                fetches = [
                    tasks.create_task(self._fetch_partition(*position, state))
                    for position in positions
                ]
        except* Overloaded as refused:
            raise refused.exceptions[0] from None
        return [fetch.result() for fetch in fetches]

    async def _fetch_partition(
        self, name: TopicName, value: PartitionValue | None, offset: Offset, state: FetchState
    ) -> _Result:
        try:
            return await self._backend.fetcher.fetch(name, value, offset, state)
        except Overloaded:
            raise
        except PenstockError as error:
            owner = owner_of(error)
            return api.FetchError(name.full, partition_json(value), str(error), error.code, owner)


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

    watcher = Tasks().start(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        watcher.cancel()


def _checked(topics: list[api.FetchTopic]) -> list[api.FetchTopic]:
    if not topics:
        raise BadRequest("no topics provided")
    if len(topics) > TOPICS_MAX:
        raise BadRequest(f"{len(topics)} topics in one request, the limit is {TOPICS_MAX}")
    return topics


def _position(namespace: Namespace, sent: api.FetchTopic) -> _Position:
    name = requests.topic_within(namespace, sent.topic)
    return name, requests.partition(sent.partition_value), Offset(sent.offset)


def _state(sent: api.FetchRequest) -> FetchState:
    optional = {name: getattr(sent, name) for name in _LIMITS}
    limits = {name: limit for name, limit in optional.items() if limit is not UNSET}
    try:
        return FetchState(**limits, fetches=len(sent.topics))
    except FetchInvalid as error:
        raise FetchInvalid(f"invalid parameter: {error}") from None


def _head(fetched: Fetched) -> bytes:
    """The JSON of a result up to the first message."""
    return msgspec.json.encode(
        api.FetchSuccess(
            fetched.topic.name.full,
            partition_json(fetched.value),
            fetched.start_offset,
            fetched.end_offset,
            Raw(b"[]"),
        )
    )[: -len(b"]}")]


def _json(results: list[_Result]) -> Iterator[bytes]:
    """The JSON of the reply, in pieces."""
    yield b'{"topics":['
    for index, result in enumerate(results):
        yield b"," if index else b""
        if isinstance(result, api.FetchError):
            yield msgspec.json.encode(result)
            continue
        yield _head(result)
        last = b""
        for batch in result.batches:
            for piece in messages_json(result.topic, batch):
                yield last
                last = piece
        yield last.removesuffix(b",")
        yield b"]}"
    yield b"]}"


def _stream(result: _Result) -> bytes:
    """A result as an Arrow stream; the metadata of its schema hold the result without messages."""
    if isinstance(result, api.FetchError):
        return arrow_stream.write(pa.schema([]), [], msgspec.json.encode(result))
    description = _head(result).removesuffix(b',"messages":[') + b"}"
    rows = (batch.to_arrow() for batch in result.batches)
    return arrow_stream.write(result.schema, rows, description)


async def _called(inline: bool, function: Callable[[], _T]) -> _T:
    """Call a function on the event loop or in a thread."""
    return function() if inline else await asyncio.to_thread(function)


async def _chunks(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(_next_chunk, pieces):
        yield chunk


def _next_chunk(pieces: Iterator[bytes]) -> bytes:
    """The next pieces of at least CHUNK_BYTES together; empty after the last piece."""
    chunk: list[bytes] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            break
    return b"".join(chunk)
