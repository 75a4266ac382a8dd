"""The HTTP door with an application that throws every body away: what HTTP alone costs."""

from __future__ import annotations

import asyncio
from typing import Final

import uvloop

from penstock.config import Address
from penstock.doors.http.body import Bodies
from penstock.doors.http.reply import Event, Receive, Reply, Send, answer
from penstock.doors.http.server import HttpDoor
from penstock.doors.listen import bound_address, listen
from penstock.host.collector import calm_collector
from penstock.host.memory import keep_memory

_BODIES: Final = Bodies(1 << 30, 1 << 30)


async def _throw_away(scope: Event, receive: Receive, send: Send) -> None:
    async with _BODIES.read_in_place(scope, receive) as body:
        await answer(scope, send, Reply(200, {"bytes": len(body)}))


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
