"""Calls to etcd: with a deadline, let in by a token, and repeated only where that is harmless.

A *read* (or a call that does the same when done twice) goes to another endpoint when one does not
answer, for as long as its deadline allows. A *write* is sent once: when it is not answered, nobody
knows whether it was carried out, and MetadataUnavailable says so. Only an expired token is a reason
to send a write again, since etcd looks at that first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import grpc

from penstock.formats.protobuf import Method
from penstock.metadata.etcd_endpoints import Endpoint, Endpoints, EtcdSettings
from penstock.metadata.etcd_messages import AUTHENTICATE, message
from penstock.metadata.interface import (
    LeaseExpired,
    MetadataRefused,
    MetadataUnavailable,
)

REPEAT_SECONDS: Final = 0.05
"""Pause before a read is sent again, so that a server in trouble is not made busier."""

_Code: Final = grpc.StatusCode
_REFUSALS: Final = (
    _Code.INVALID_ARGUMENT,
    _Code.PERMISSION_DENIED,
    _Code.UNAUTHENTICATED,
    _Code.FAILED_PRECONDITION,
    _Code.UNIMPLEMENTED,
)
_TOKEN_TROUBLE: Final = ("invalid auth token", "auth store is old")
_TOO_LARGE: Final = "larger than max"
_LEASE_GONE: Final = "requested lease not found"
_HAS_LEADER: Final = ("hasleader", "true")
"""Ends a stream of a member that has lost the cluster, instead of leaving it silent."""


class TokenRefused(MetadataUnavailable):
    """etcd wants another token: this one ran out, or users changed; nothing was carried out."""


class ResponseTooLarge(MetadataUnavailable):
    """The response is over receive_bytes_max: ask for less."""


class Calls:
    """The cluster, as something to call; make it where an event loop runs."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._endpoints = Endpoints(settings)
        self._loop = asyncio.get_running_loop()
        self._token = ""
        self._login = asyncio.Lock()
        self._closed = False

    @property
    def logs_in(self) -> bool:
        """Calls carry a token."""
        return bool(self._settings.user)

    async def read(self, method: Method, request: Any) -> Any:
        """The response; raises MetadataUnavailable, MetadataRefused, LeaseExpired."""
        deadline = self._deadline()
        while True:
            try:
                return await self._once(method, request, deadline, self._left(deadline) / 2)
            except ResponseTooLarge:
                raise
            except MetadataUnavailable:
                if self._closed or self._left(deadline) <= REPEAT_SECONDS:
                    raise
                await asyncio.sleep(REPEAT_SECONDS)

    async def write(self, method: Method, request: Any) -> Any:
        """The response; after MetadataUnavailable the outcome is open."""
        deadline = self._deadline()
        try:
            return await self._once(method, request, deadline, self._left(deadline))
        except TokenRefused:
            return await self._once(method, request, deadline, self._left(deadline))

    async def exchange(self, method: Method, request: Any) -> Any:
        """One request and its response over a stream that is opened for them."""
        async with self.stream(method, bounded=True) as stream:
            await stream.write(request)
            response = await stream.read()
        if response is grpc.aio.EOF:
            raise MetadataUnavailable(f"etcd ended {method.path} without an answer")
        return response

    @asynccontextmanager
    async def stream(self, method: Method, bounded: bool = False) -> AsyncIterator[Any]:
        """A stream that ends with the context, or `bounded` with the deadline of a call.

        Its errors come out as ours.
        """
        deadline = self._deadline()
        endpoint, metadata = await self._prepare(deadline)
        with self._translated(method, endpoint):
            stream = endpoint.stream(method)(
                timeout=self._left(deadline) if bounded else None,
                metadata=(*metadata, _HAS_LEADER),
            )
            try:
                yield stream
            finally:
                stream.cancel()

    def forget_token(self) -> None:
        """Log in again before the next call."""
        self._token = ""

    async def close(self) -> None:
        """Calls under way end with MetadataUnavailable."""
        self._closed = True
        await self._endpoints.close()

    async def _once(self, method: Method, request: Any, deadline: float, seconds: float) -> Any:
        endpoint, metadata = await self._prepare(deadline)
        timeout = min(seconds, self._left(deadline))
        with self._translated(method, endpoint):
            return await endpoint.unary(method)(request, timeout=timeout, metadata=metadata)

    async def _prepare(self, deadline: float) -> tuple[Endpoint, tuple[tuple[str, str], ...]]:
        """Whom to ask, and how to be let in there."""
        if self._closed:
            raise MetadataUnavailable("the connection to etcd is closed")
        endpoint = await self._endpoints.pick(max(0.0, self._left(deadline)))
        if not self.logs_in:
            return endpoint, ()
        async with self._login:
            if not self._token:
                self._token = await self._log_in(endpoint, self._left(deadline))
        return endpoint, (("token", self._token),)

    async def _log_in(self, endpoint: Endpoint, seconds: float) -> str:
        request = message(
            "AuthenticateRequest", name=self._settings.user, password=self._settings.password
        )
        with self._translated(AUTHENTICATE, endpoint):
            response = await endpoint.unary(AUTHENTICATE)(request, timeout=seconds)
        return str(response.token)

    @contextmanager
    def _translated(self, method: Method, endpoint: Endpoint) -> Iterator[None]:
        """Errors of the call come out as ours; whether the endpoint answered is remembered."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._told(error, method, endpoint) from None
        except grpc.aio.UsageError as error:
            raise MetadataUnavailable(f"the connection to etcd is gone: {error}") from None
        except asyncio.CancelledError:
            # A closed connection cancels its calls, which looks as if the caller was cancelled.
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise MetadataUnavailable("the connection to etcd was closed") from None
            raise
        endpoint.doubted = False

    def _told(self, error: Any, method: Method, endpoint: Endpoint) -> Exception:
        code, details = error.code(), error.details() or ""
        sentence = f"etcd at {endpoint.target}, {method.path}: {details} ({code.name.lower()})"
        endpoint.doubted = code in (_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED)
        if self._token and is_token_trouble(details):
            self.forget_token()
            return TokenRefused(sentence)
        if code is _Code.NOT_FOUND and _LEASE_GONE in details:
            return LeaseExpired(sentence)
        if code is _Code.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
            return ResponseTooLarge(sentence)
        return (MetadataRefused if code in _REFUSALS else MetadataUnavailable)(sentence)

    def _deadline(self) -> float:
        return self._loop.time() + self._settings.call_seconds

    def _left(self, deadline: float) -> float:
        return deadline - self._loop.time()


def is_token_trouble(details: str) -> bool:
    """Whether etcd refused because the token ran out or users changed."""
    return any(text in details for text in _TOKEN_TROUBLE)
