"""POST /v1/fetch: messages of several partitions by offset, waiting for them if need be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw

from penstock.doors.http import body, requests
from penstock.doors.http.backend import Backend
from penstock.doors.http.body import ClientGone, demand_json, header
from penstock.doors.http.errors import BadRequest, Refused
from penstock.doors.http.reply import Receive, Reply
from penstock.doors.http.routes import Request, Route
from penstock.doors.http.shown import shown, text
from penstock.formats import api, arrow_stream
from penstock.model.errors import FetchInvalid, Overloaded, PenstockError
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset
from penstock.topics.fetch_state import FETCH_BYTES_MAX, FetchState
from penstock.topics.fetcher import Fetched

TOPICS_MAX: Final = 1000
"""Topics and partitions of one request."""
INLINE_BYTES_MAX: Final = 64 << 10
INLINE_MESSAGES_MAX: Final = 1000
"""A reply within both is made on the loop, a larger one in a thread: kernels release the GIL."""
CHUNK_BYTES: Final = 256 << 10
"""A large reply goes out in chunks of at least this."""

_DECODER: Final = msgspec.json.Decoder(api.FetchRequest)
_LIMITS: Final = ("timeout_ms", "min_messages", "max_messages")
_T = TypeVar("_T")


class Fetches:
    """Serves fetches; `hurry` lets those that wait return with what they have."""

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
        """From now on no fetch waits at the head."""
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
        """One answer for each, in order; raises Overloaded when one of them is too many."""
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
            return api.FetchError(name.full, shown(value), str(error))


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work returns; it is cancelled when the client closes its connection.

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
        raise Refused(400, f"invalid parameter: {error}") from None


def _head(fetched: Fetched) -> bytes:
    """An answer up to its messages."""
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
    """The text of the reply, piece by piece."""
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
    """The same as an Arrow stream, whose schema tells what is not in its rows."""
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
    """Pieces up to at least CHUNK_BYTES; nothing when there are no more."""
    taken: list[bytes] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            break
    return b"".join(taken)
