"""The HTTP server with an application that discards every body: the cost of HTTP alone."""

from __future__ import annotations

import asyncio
from typing import Final

import uvloop

from penstock.config import Address
from penstock.host.process import calm_collector, keep_memory
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.reply import Event, Receive, Reply, Send, answer
from penstock.protocols.http.server import HttpServer
from penstock.protocols.listener import listen

_BODIES: Final = Bodies(1 << 30, 1 << 30)


async def _throw_away(scope: Event, receive: Receive, send: Send) -> None:
    async with _BODIES.read_in_place(scope, receive) as body:
        await answer(scope, send, Reply(200, {"bytes": len(body)}))


async def _serve() -> None:
    with listen([Address("127.0.0.1", 0)], "--http") as listener:
        print(f"http listening on http://{listener.addresses[0]}", flush=True)
        await HttpServer(_throw_away, listener, 0).serve()


if __name__ == "__main__":
    calm_collector()
    keep_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
