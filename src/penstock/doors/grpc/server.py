"""The gRPC door: grpc.aio inside our loop, with our words for what goes wrong.

It takes its port when it is made, and answers once it is started; calls wait in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

import grpc
import structlog

from penstock.config import Address
from penstock.doors.grpc.admin import Handlers
from penstock.doors.listen import listen
from penstock.formats.rpc import METHODS
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.rpc_errors import Status, status_of
from penstock.model.errors import Overloaded, PenstockError, StartRefused

FLAG: Final = "--grpc"
LONG_POLLS: Final = frozenset({"OffsetLocation"})
"""Calls that may wait for something to happen; a drain does not wait for them."""

_OPTIONS: Final = (
    # Or a second broker would share the port instead of being refused.
    ("grpc.so_reuseport", 0),
    # Clients that wait for an answer may ask every few seconds whether we are still there.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_events = structlog.get_logger()


class GrpcDoor:
    """Answers calls on a port of a loopback address; raises StartRefused when it cannot have it."""

    def __init__(self, address: Address, calls_max: int, drain_seconds: int) -> None:
        self._server = grpc.aio.server(options=_OPTIONS)
        self.address = Address(address.host, _bind(self._server, address))
        """As it was asked for, with the port that was taken."""
        self._calls_max, self._drain_seconds = calls_max, drain_seconds
        self._polls: set[asyncio.Task[Any]] = set()
        self._draining = False
        self.running = 0

    async def start(self, handlers: Handlers) -> None:
        """Answer calls from here on."""
        services: dict[str, dict[str, Any]] = {}
        for name, handle in handlers.items():
            method = METHODS[name]
            service = method.path.split("/")[1]
            services.setdefault(service, {})[name] = grpc.unary_unary_rpc_method_handler(
                partial(self._answer, name, handle),
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(*service) for service in services.items()]
        )
        await self._server.start()

    async def drain(self) -> None:
        """Take no more calls, end long polls at once; others may finish within the seconds."""
        self._draining = True
        for poll in self._polls:
            poll.cancel()
        await self._server.stop(self._drain_seconds)

    async def _answer(self, name: str, handle: Any, request: Any, context: Any) -> Any:
        try:
            return await self._counted(name, handle(request))
        except PenstockError as error:
            status = status_of(error)
            if status.code is grpc.StatusCode.INTERNAL:
                _events.error("call failed", call=name, reason=str(error))
        except Exception:
            _events.exception("call failed", call=name)
            reason = "the broker failed on this; its log says why"
            status = Status(grpc.StatusCode.INTERNAL, reason, ())
        return await context.abort(*status)

    async def _counted(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        if self.running >= self._calls_max:
            work.close()
            raise Overloaded("too many calls at the same time", "grpc.max_calls", self._calls_max)
        self.running += 1
        try:
            return await (self._poll(work) if name in LONG_POLLS else work)
        finally:
            self.running -= 1

    async def _poll(self, work: Coroutine[Any, Any, Any]) -> Any:
        poll = asyncio.create_task(work)
        self._polls.add(poll)
        try:
            return await poll
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._draining and task is not None and not task.cancelling():
                raise MetadataUnavailable("the broker is shutting down") from None
            raise
        finally:
            self._polls.discard(poll)


def _bind(server: Any, address: Address) -> int:
    """The port that was taken."""
    # gRPC binds by itself and says little when it cannot: so the same is tried by us first.
    with listen(address, FLAG) as probe:
        ip, _, *_ = probe.getsockname()
        port = probe.getsockname()[1] if address.port else 0
    try:
        return int(server.add_insecure_port(str(Address(ip, port))))
    except RuntimeError:
        raise StartRefused(
            f"cannot listen on {address}; choose another with {FLAG} HOST:PORT"
        ) from None
