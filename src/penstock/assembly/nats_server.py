"""A broker of which only the NATS door is open: where nats-server stood.

Without a data directory it keeps nothing and serves core NATS alone; what keeps messages is then
not even imported, which is most of a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import uvloop

from penstock.assembly.directory import locked
from penstock.assembly.events import configure_events
from penstock.assembly.stopping import Stop
from penstock.config import Address
from penstock.doors.listen import listen
from penstock.doors.nats.clients import NatsLimits
from penstock.doors.nats.greeting import Credentials
from penstock.doors.nats.monitor import Monitor
from penstock.doors.nats.server import NatsDoor
from penstock.host.clock import Clock
from penstock.host.collector import calm_collector
from penstock.host.memory import keep_memory

STREAMS: Final = "penstock.assembly.nats_streams"
DRAIN_SECONDS: Final = 2.0
EVENT_LEVEL: Final = "error"
"""Whoever starts a server for a test seldom reads what it tells, and a full pipe would stop it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be served, and to whom."""

    address: Address
    monitor: Address | None
    data: str | None
    """The data directory; None: no streams."""
    name: str
    limits: NatsLimits
    credentials: Credentials


Announce = Callable[[str], None]


def serve(plan: Plan, announce: Announce) -> None:
    """Run until SIGTERM or SIGINT; raises StartRefused when it cannot start.

    The garbage collector may be off until here.
    """
    if plan.data is not None:
        import_module(STREAMS)
    configure_events(EVENT_LEVEL, "text", ())
    calm_collector()
    keep_memory()
    gc.enable()
    held = contextlib.nullcontext() if plan.data is None else locked(plan.data, "-sd")
    with held, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(plan, announce))


async def _serve(plan: Plan, announce: Announce) -> None:
    stop = Stop("nats server")
    stop.listen()
    async with AsyncExitStack() as stack:
        listener = _listen(stack, plan.address, "--addr and --port")
        door = NatsDoor(listener, plan.limits, plan.credentials, plan.name)
        if plan.data is None:
            stack.push_async_callback(door.drain, DRAIN_SECONDS)
        else:
            await import_module(STREAMS).open_streams(stack, door, plan.data, DRAIN_SECONDS)
        if plan.monitor is not None:
            pages = _listen(stack, plan.monitor, "-m")
            monitor = Monitor(pages, door.clients, Clock())
            await monitor.start()
            stack.callback(monitor.close)
            announce(f"Starting http monitor on {_shown(plan.monitor.host, pages)}")
        await door.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, door.lame_duck)
        announce(f"Listening for client connections on {_shown(plan.address.host, listener)}")
        announce("Server is ready")
        await stop.wait()


def _listen(stack: AsyncExitStack, address: Address, flag: str) -> socket.socket:
    """Anywhere: who names an address, or calls the server `nats-server`, has asked for it."""
    return stack.enter_context(contextlib.closing(listen(address, flag, anywhere=True)))


def _shown(host: str, listener: socket.socket) -> str:
    return f"{host}:{listener.getsockname()[1]}"
