"""Builds a plain NATS server, a drop-in replacement of nats-server.

Without a data directory it serves core NATS only and stores nothing. The storage is then not
imported, which takes most of the time of a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import uvloop

from penstock.assembly.directory import locked
from penstock.assembly.events import configure_events
from penstock.assembly.stopping import Stop
from penstock.config import Address
from penstock.host.clock import Clock
from penstock.host.process import calm_collector, keep_memory
from penstock.protocols import ALL_INTERFACES, EVERY_FAMILY, Listener, listen
from penstock.protocols.nats import Credentials, Monitor, NatsLimits, NatsServer

STREAMS: Final = "penstock.assembly.nats_streams"
DRAIN_SECONDS: Final = 2.0
EVENT_LEVEL: Final = "error"
"""Tests that start a server seldom read its output, and a full pipe would block it."""


@dataclass(frozen=True, slots=True)
class NatsServerPlan:
    """The settings of a plain NATS server."""

    addresses: tuple[Address, ...]
    monitor: tuple[Address, ...]
    """Addresses of the monitoring pages; none if empty."""
    data: str | None
    """The data directory; None for a server without streams."""
    name: str
    limits: NatsLimits
    credentials: Credentials
    wildcards: tuple[str, ...] = ()
    """Configured hosts that stand for all addresses, `0.0.0.0` or `::`."""


Announce = Callable[[str], None]


def serve_nats(plan: NatsServerPlan, announce: Announce) -> None:
    """Run a NATS server until SIGTERM or SIGINT; raises StartRefused.

    The caller may have disabled the garbage collector; it is enabled here.
    """
    if plan.data is not None:
        import_module(STREAMS)
    configure_events(EVENT_LEVEL, "text", ())
    calm_collector()
    keep_memory()
    gc.enable()
    lock = contextlib.nullcontext() if plan.data is None else locked(plan.data, "-sd")
    with lock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(plan, announce))


async def _serve(plan: NatsServerPlan, announce: Announce) -> None:
    stop = Stop("nats server")
    stop.listen()
    async with AsyncExitStack() as stack:
        listener = _listen(stack, plan.addresses, "--addr and --port")
        announced = _announced(listener.addresses, plan.wildcards)
        server = NatsServer(listener, plan.limits, plan.credentials, plan.name, announced[0])
        if plan.data is None:
            stack.push_async_callback(server.drain, DRAIN_SECONDS)
        else:
            await import_module(STREAMS).open_streams(stack, server, plan.data, DRAIN_SECONDS)
        if plan.monitor:
            pages = _listen(stack, plan.monitor, "-m")
            monitor = Monitor(pages, server.clients, Clock())
            await monitor.start()
            stack.callback(monitor.close)
            for address in pages.addresses:
                announce(f"Starting http monitor on {address}")
        await server.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, server.lame_duck)
        for address in announced:
            announce(f"Listening for client connections on {address}")
        announce("Server is ready")
        await stop.wait()


def _announced(addresses: Sequence[Address], wildcards: Sequence[str]) -> Sequence[Address]:
    """The addresses to announce: wildcard hosts only if configured, like nats-server."""
    implied = set(EVERY_FAMILY[ALL_INTERFACES]).difference(wildcards)
    return [address for address in addresses if address.host not in implied] or addresses


def _listen(stack: AsyncExitStack, addresses: Sequence[Address], flag: str) -> Listener:
    """Listen on any address, also a public one: the user has named it on the command line."""
    return stack.enter_context(listen(addresses, flag, anywhere=True))
