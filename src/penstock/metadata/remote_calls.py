"""Calls to a broker's gRPC door: one connection, a time-out on each, its errors raised as ours.

A connection that is lost is made again by itself; until then calls fail at once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from penstock.formats.rpc import METHODS
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.rpc_errors import rebuilt

CALL_SECONDS: Final = 5.0
CHANGE_SECONDS: Final = 60.0
"""For a call that changes something: removing a topic removes its data."""
RECEIVE_BYTES_MAX: Final = 64 << 20

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    # A silent broker is found out while somebody waits for it, too.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class RemoteCalls:
    """The broker at HOST:PORT, as something to call; make it where an event loop runs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._calls = {
            name: self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            for name, method in METHODS.items()
        }
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the broker answers; if not, it is tried."""
        state = self._channel.get_state(try_to_connect=True)
        return bool(state is grpc.ChannelConnectivity.READY)

    async def call(self, name: str, seconds: float = CALL_SECONDS, /, **fields: Any) -> Any:
        """The response; raises what the broker raised, or MetadataUnavailable.

        After MetadataUnavailable nobody knows whether a change was made.
        """
        if self._closed:
            raise self._unavailable("the connection is closed")
        request = METHODS[name].request(**fields)
        try:
            return await self._calls[name](request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._told(error, seconds) from None
        except asyncio.CancelledError:
            if self._closed_under_a_call():
                raise self._unavailable("the connection was closed") from None
            raise

    async def close(self) -> None:
        """Calls under way end with MetadataUnavailable."""
        self._closed = True
        await self._channel.close()

    def _closed_under_a_call(self) -> bool:
        """A closed connection cancels its calls, which looks as if the caller was cancelled."""
        task = asyncio.current_task()
        return self._closed and task is not None and not task.cancelling()

    def _told(self, error: Any, seconds: float) -> Exception:
        known = rebuilt(error.trailing_metadata())
        if isinstance(known, MetadataUnavailable):
            return self._unavailable(str(known))
        if known is not None:
            return known
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._unavailable(f"no answer in {seconds:.1f} s")
        return self._unavailable(f"{error.details()} ({error.code().name.lower()})")

    def _unavailable(self, reason: str) -> MetadataUnavailable:
        return MetadataUnavailable(f"the broker at {self.address}: {reason}")
