"""The HTTP application over topics, called as its server would call it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from penstock.formats.api import ARROW_STREAM, JSON
from penstock.model import names
from penstock.model import schema as schemas
from penstock.model.metrics import single
from penstock.model.resources import Topic, TopicSpec
from penstock.protocols.http.app import App
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.reply import Event
from penstock.protocols.http.routes import Request
from penstock.topics import Fetcher, LocalOffsets, Pusher
from tests.broker.storage import World
from tests.broker.topics import Served, serve
from tests.eventually import eventually

NAMESPACE: Final = "default/default"
TOPICS: Final = "/v1/tenants/default/namespaces/default/topics"
BODY_BYTES_MAX: Final = 1 << 20
LONG_MS: Final = 50_000


class Answer(NamedTuple):
    """What came back; JSON is decoded."""

    status: int
    body: Any
    headers: dict[bytes, bytes]

    @property
    def plain(self) -> tuple[int, Any]:
        return self.status, self.body


class Client:
    """One request on its way: its body is sent, then the connection stays open until `leave`."""

    def __init__(self, app: App, scope: Event, *pieces: bytes) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._sent: list[Event] = []
        for index, piece in enumerate(pieces):
            more = index < len(pieces) - 1
            self._events.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        self._task = asyncio.create_task(app(scope, self._events.get, self._send))

    def leave(self) -> None:
        self._events.put_nowait({"type": "http.disconnect"})

    async def ended(self) -> list[Event]:
        """What was sent, once the request is over."""
        await self._task
        return self._sent

    async def answer(self) -> Answer:
        start, *bodies = await self.ended()
        headers = dict(start["headers"])
        body = b"".join(event["body"] for event in bodies)
        if headers.get(b"content-type") == b"application/json":
            return Answer(start["status"], json.loads(body) if body else None, headers)
        return Answer(start["status"], body, headers)

    async def _send(self, event: Event) -> None:
        self._sent.append(event)


def received_request(
    body: bytes = b"", query: bytes = b"", *headers: tuple[bytes, bytes]
) -> Request:
    """A request as a handler receives it."""

    async def receive() -> Event:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"query_string": query, "headers": headers}, receive, {})


class HttpSite:
    """The application and what it serves."""

    def __init__(self, served: Served, app: App, backend: Backend) -> None:
        self.served, self.app, self.backend = served, app, backend
        self.fetcher, self.bodies = backend.fetcher, backend.bodies

    def start(
        self,
        method: str,
        target: str,
        *pieces: bytes,
        content_type: str = "",
        accept: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Client:
        path, _, query = target.partition("?")
        told = [(b"content-type", content_type.encode())] if content_type else []
        told += [(b"accept", accept.encode())] if accept else []
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [*told, *headers],
        }
        return Client(self.app, scope, *(pieces or (b"",)))

    async def ask(self, method: str, target: str, body: Any = None, accept: str = "") -> Answer:
        if body is None:
            return await self.start(method, target, accept=accept).answer()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.start(method, target, data, content_type=JSON, accept=accept).answer()

    async def push(self, *batches: dict[str, Any]) -> Answer:
        return await self.ask("POST", "/v1/push", {"namespace": NAMESPACE, "batches": batches})

    async def push_arrow(self, query: str, table: pa.Table) -> Answer:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = bytes(sink.getvalue())
        target = f"/v1/push?namespace={NAMESPACE}&{query}"
        return await self.start("POST", target, data, content_type=ARROW_STREAM).answer()

    def fetching(self, *topics: dict[str, Any], accept: str = "", **limits: Any) -> Client:
        """A fetch that may have to wait."""
        body = json.dumps({"namespace": NAMESPACE, "topics": topics, **limits}).encode()
        return self.start("POST", "/v1/fetch", body, content_type=JSON, accept=accept)

    async def fetch(self, *topics: dict[str, Any], **limits: Any) -> Answer:
        return await self.fetching(*topics, **limits).answer()

    async def topic(self, name: str, *fields: str, partition: str | None = None) -> Topic:
        """Make a topic; raw without fields."""
        columns = schemas.schema(map(schemas.field, fields)) if fields else None
        spec = TopicSpec(names.topic(name), columns, partition)
        return (await self.served.create(spec)).topic

    async def parked(self, count: int) -> None:
        """Return once this many fetches wait."""

        async def there() -> bool:
            return self.fetcher.parked == count

        await eventually(there)


@asynccontextmanager
async def opened(
    world: World, fetches_max: int = 100, pending_bytes_max: int = 4 << 20
) -> AsyncIterator[HttpSite]:
    """The application over the topics of a broker."""
    served = await serve(world)
    fetcher = Fetcher(served.admin, served.source, fetches_max)
    bodies = Bodies(BODY_BYTES_MAX, pending_bytes_max)
    pusher = Pusher(served.topics, world.log_settings)
    backend = Backend(
        admin=served.admin,
        registry=LocalOffsets(served.topics, "127.0.0.1:8080"),
        source=served.source,
        fetcher=fetcher,
        bodies=bodies,
        topics=served.topics,
        pusher=pusher,
    )
    app = App(
        lambda: (True, {"logs": {"open": 3}}),
        lambda: [single("penstock_x", "gauge", "An x.", 7)],
        backend,
    )
    try:
        yield HttpSite(served, app, backend)
    finally:
        await pusher.close()
