"""The gRPC server: grpc.aio on the broker's event loop.

It binds its addresses when it is created, and serves calls once it is started; calls in between
wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from penstock.config import Address
from penstock.formats.rpc import ERROR_CODE, METHODS
from penstock.host.tasks import Tasks
from penstock.metadata import MetadataUnavailable
from penstock.metadata.remote import CallStatus, status_of
from penstock.model.errors import Overloaded, PenstockError, StartRefused
from penstock.protocols.grpc.handlers import Handlers
from penstock.protocols.listener import listen

FLAG: Final = "--grpc"
BIND_ATTEMPTS: Final = 3
"""Another process may take a port after it was probed and before gRPC binds it."""
PENDING_CALLS_MIN: Final = 1000
LONG_POLLS: Final = frozenset({"OffsetLocation"})
"""Calls that may wait for an event; a drain does not wait for them."""
CHANGES: Final = ("Create", "Delete")
"""Prefixes of the calls that change something; they complete even if their client leaves."""

_OPTIONS: Final = (
    # Otherwise a second broker would share the port instead of being refused.
    ("grpc.so_reuseport", 0),
    # Clients that wait for a reply may ping every few seconds.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_events = structlog.get_logger()


class GrpcServer:
    """Serves calls on loopback addresses; raises StartRefused if it cannot listen on one."""

    def __init__(self, addresses: Sequence[Address], calls_max: int, drain_seconds: int) -> None:
        self._server, self.addresses = _bound_server(addresses, calls_max)
        self._calls_max, self._drain_seconds = calls_max, drain_seconds
        self._polls, self._changes = Tasks(), Tasks()
        self._draining = False
        self.running = 0

    async def start(self, handlers: Handlers) -> None:
        """Start to serve calls."""
        services: dict[str, dict[str, Any]] = {}
        for name, handle in handlers.items():
            method = METHODS[name]
            service = method.path.split("/")[1]
            services.setdefault(service, {})[name] = grpc.unary_unary_rpc_method_handler(
                partial(self._answer, name, handle),
                # `_answer` decodes requests: gRPC would reply UNKNOWN and log a traceback.
                response_serializer=method.response.SerializeToString,
            )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(*service) for service in services.items()]
        )
        await self._server.start()

    async def drain(self) -> None:
        """Accept no more calls and end long polls; other calls have `drain_seconds` to complete."""
        self._draining = True
        for poll in self._polls:
            poll.cancel()
        await self._server.stop(self._drain_seconds)
        await self._changes.cancel()

    async def _answer(self, name: str, handle: Any, data: bytes, context: Any) -> Any:
        try:
            request = METHODS[name].request.FromString(data)
            return await self._counted(name, handle(request))
        except DecodeError:
            reason = f"the request is not a valid {name}Request"
            status = _status(grpc.StatusCode.INVALID_ARGUMENT, reason, "bad_request")
        except PenstockError as error:
            status = status_of(error)
            if status.status is grpc.StatusCode.INTERNAL:
                _events.error("call failed", call=name, reason=str(error))
        except Exception:
            _events.exception("call failed", call=name)
            reason = "an internal error occurred; the broker's log has the details"
            status = _status(grpc.StatusCode.INTERNAL, reason, PenstockError.code)
        return await context.abort(*status)

    async def _counted(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        if self.running >= self._calls_max:
            work.close()
            raise Overloaded("too many calls at the same time", "grpc.max_calls", self._calls_max)
        self.running += 1
        if name.startswith(CHANGES):
            return await self._change(work)
        try:
            return await (self._poll(work) if name in LONG_POLLS else work)
        finally:
            self.running -= 1

    async def _change(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Perform a change to its end, even if the client cancels the call.

        The threads of a cancelled deletion would still run when the next one begins.
        """
        change = self._changes.start(work)
        change.add_done_callback(self._changed)
        try:
            return await asyncio.shield(change)
        except asyncio.CancelledError:
            change.add_done_callback(_log_bug)
            raise

    def _changed(self, change: asyncio.Task[Any]) -> None:
        self.running -= 1

    async def _poll(self, work: Coroutine[Any, Any, Any]) -> Any:
        poll = self._polls.start(work)
        try:
            return await poll
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._draining and task is not None and not task.cancelling():
                raise MetadataUnavailable("the broker is shutting down") from None
            raise


def _status(status: Any, details: str, code: str) -> CallStatus:
    return CallStatus(status, details, ((ERROR_CODE, code),))


def _log_bug(change: asyncio.Task[Any]) -> None:
    """Log the error of a change whose client has left, unless it is a PenstockError."""
    error = None if change.cancelled() else change.exception()
    if error is not None and not isinstance(error, PenstockError):
        _events.error("call failed", exc_info=error)


def _bound_server(addresses: Sequence[Address], calls_max: int) -> tuple[Any, list[Address]]:
    """A server that has bound its addresses, and these addresses; raises StartRefused."""
    # gRPC cancels calls if more than this are pending. It must be above `calls_max`, at which calls
    # are refused with RESOURCE_EXHAUSTED and the name of the setting.
    pending = max(2 * calls_max, PENDING_CALLS_MIN)
    waiting = (
        ("grpc.server.max_pending_requests", pending),
        ("grpc.server.max_pending_requests_hard_limit", 2 * pending),
    )
    for _ in range(BIND_ATTEMPTS):
        # gRPC gives no reason if it cannot bind, so that sockets of our own try first.
        with listen(addresses, FLAG) as probe:
            bound = probe.addresses
        server = grpc.aio.server(options=(*_OPTIONS, *waiting))
        try:
            for address in bound:
                server.add_insecure_port(str(address))
        except RuntimeError:
            continue
        return server, bound
    shown = ", ".join(map(str, bound))
    raise StartRefused(f"cannot listen on {shown}; choose another with {FLAG} HOST:PORT")
