"""An HTTP server that answers fetches in Arrow, as an owner does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pyarrow as pa
from aiohttp import web

from penstock.formats import api, arrow_stream
from penstock.model.batch import ENVELOPE, Batch
from penstock.model.units import Offset


class Owner:
    """Answers with its batches from the offset on, with its error, or with its reply."""

    def __init__(self) -> None:
        self.address = ""
        self.batches: list[Batch] = []
        self.schema: pa.Schema = ENVELOPE
        self.error = ""
        self.reply: web.Response | None = None
        self.silent = False
        self.requests: list[api.FetchRequest] = []
        self.accepts: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        request_body = msgspec.json.decode(await request.read(), type=api.FetchRequest)
        self.requests.append(request_body)
        self.accepts.append(request.headers["accept"])
        if self.silent:
            await asyncio.Event().wait()
        if self.reply is not None:
            return self.reply
        if self.error:
            note = msgspec.json.encode(
                api.FetchError(request_body.topics[0].topic, None, self.error)
            )
            return web.Response(body=arrow_stream.write(pa.schema([]), [], note))
        rows = [
            batch.starting_at(Offset(request_body.topics[0].offset)).to_arrow()
            for batch in self.batches
            if batch.next_offset > request_body.topics[0].offset
        ]
        assert isinstance(request_body.max_messages, int)
        table = pa.Table.from_batches(rows, self.schema).slice(0, request_body.max_messages)
        body = arrow_stream.write(self.schema, table.to_batches(), b'{"_tag":"success"}')
        return web.Response(body=body)


@asynccontextmanager
async def owner() -> AsyncIterator[Owner]:
    server = Owner()
    app = web.Application()
    app.router.add_post("/v1/fetch", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
