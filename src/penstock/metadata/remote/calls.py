"""Calls to the gRPC server of a broker, over one connection and with a timeout for each call.

A lost connection is opened again automatically; until then calls fail at once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from penstock.formats.rpc import METHODS
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.remote.errors import rebuilt

CALL_SECONDS: Final = 5.0
CHANGE_SECONDS: Final = 60.0
"""The timeout of a call that changes something: deleting a topic deletes its data."""
RECEIVE_BYTES_MAX: Final = 64 << 20

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    # Detects a silent broker also during a long poll.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class RemoteCalls:
    """Calls the broker at HOST:PORT; create it where an event loop runs."""

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
        """Whether there is a connection; if not, opens one in the background."""
        state = self._channel.get_state(try_to_connect=True)
        return bool(state is grpc.ChannelConnectivity.READY)

    async def call(self, name: str, seconds: float = CALL_SECONDS, /, **fields: Any) -> Any:
        """Call a method; returns its response, or raises the error that the broker raised.

        Raises MetadataUnavailable without a response; then the outcome of a change is unknown.
        """
        if self._closed:
            raise self._unavailable("the connection is closed")
        request = METHODS[name].request(**fields)
        try:
            return await self._calls[name](request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error, seconds) from None
        except asyncio.CancelledError:
            if self._closed_under_a_call():
                raise self._unavailable("the connection was closed") from None
            raise

    async def close(self) -> None:
        """Close the connection; running calls raise MetadataUnavailable."""
        self._closed = True
        await self._channel.close()

    def _closed_under_a_call(self) -> bool:
        """Whether a cancellation is due to the closed connection, not to the caller's task."""
        task = asyncio.current_task()
        return self._closed and task is not None and not task.cancelling()

    def _translated(self, error: Any, seconds: float) -> Exception:
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
