"""The HTTP door with an application that throws every body away: what HTTP alone costs."""

from __future__ import annotations

import asyncio

import uvloop

from penstock.config import Address
from penstock.doors.http.reply import Event, Receive, Reply, Send, answer
from penstock.doors.http.server import HttpDoor
from penstock.doors.listen import bound_address, listen
from penstock.host.collector import calm_collector
from penstock.host.memory import keep_memory


async def _throw_away(scope: Event, receive: Receive, send: Send) -> None:
    pieces = []
    while (event := await receive()).get("more_body", False):
        pieces.append(event["body"])
    await answer(scope, send, Reply(200, {"bytes": len(b"".join(pieces))}))


async def _serve() -> None:
    address = Address("127.0.0.1", 0)
    with listen(address, "--http") as sock:
        print(f"http listening on http://{bound_address(address, sock)}", flush=True)
        await HttpDoor(_throw_away, sock, 0).serve()


if __name__ == "__main__":
    calm_collector()
    keep_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
