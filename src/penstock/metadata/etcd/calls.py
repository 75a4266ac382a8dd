"""Calls to etcd, with a deadline and a token, repeated only where that is harmless.

A *read* (or another idempotent call) is sent to another endpoint if one does not reply, until its
deadline. A *write* is sent once: without a reply its outcome is unknown, and it raises
MetadataUnavailable. A write is sent again only after an expired token, which etcd checks first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import grpc

from penstock.formats.protobuf import Method
from penstock.metadata.etcd.endpoints import EtcdEndpoint, EtcdEndpoints, EtcdSettings
from penstock.metadata.etcd.messages import AUTHENTICATE, message
from penstock.metadata.interface import (
    LeaseExpired,
    MetadataRefused,
    MetadataUnavailable,
)

REPEAT_SECONDS: Final = 0.05
"""Delay before a read is sent again, so that retries do not overload a server in trouble."""

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
HAS_LEADER: Final = ("hasleader", "true")
"""With this metadata, a member that has lost its leader ends a stream instead of staying silent."""


class TokenRefused(MetadataUnavailable):
    """etcd requires a new token: it expired, or users changed; nothing was carried out."""

    code = "etcd_token_refused"


class ResponseTooLarge(MetadataUnavailable):
    """The response is larger than receive_bytes_max: request less."""

    code = "etcd_response_too_large"


class EtcdCalls:
    """Calls the cluster; create it where an event loop runs."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._endpoints = EtcdEndpoints(settings)
        self._loop = asyncio.get_running_loop()
        self._token = ""
        self._login = asyncio.Lock()
        self._closed = False

    @property
    def logs_in(self) -> bool:
        """Whether calls carry a token."""
        return bool(self._settings.user)

    async def read(self, method: Method, request: Any) -> Any:
        """Call an idempotent method; raises MetadataUnavailable, MetadataRefused, LeaseExpired."""
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
        """Call any method; after MetadataUnavailable the outcome is unknown."""
        deadline = self._deadline()
        try:
            return await self._once(method, request, deadline, self._left(deadline))
        except TokenRefused:
            return await self._once(method, request, deadline, self._left(deadline))

    @asynccontextmanager
    async def stream(self, method: Method) -> AsyncIterator[Any]:
        """Open a stream, which ends with the context; raises PenstockError only."""
        deadline = self._deadline()
        endpoint, metadata = await self._prepare(deadline)
        with self._translated(method, endpoint):
            stream = endpoint.stream(method)(metadata=(*metadata, HAS_LEADER))
            try:
                yield stream
            finally:
                stream.cancel()

    def forget_token(self) -> None:
        """Log in again before the next call."""
        self._token = ""

    async def close(self) -> None:
        """Close the connections; running calls raise MetadataUnavailable."""
        self._closed = True
        await self._endpoints.close()

    async def _once(self, method: Method, request: Any, deadline: float, seconds: float) -> Any:
        endpoint, metadata = await self._prepare(deadline)
        timeout = min(seconds, self._left(deadline))
        with self._translated(method, endpoint):
            return await endpoint.unary(method)(request, timeout=timeout, metadata=metadata)

    async def _prepare(self, deadline: float) -> tuple[EtcdEndpoint, tuple[tuple[str, str], ...]]:
        """The endpoint to call, and the metadata that the call must carry."""
        if self._closed:
            raise MetadataUnavailable("the connection to etcd is closed")
        endpoint = await self._endpoints.pick(max(0.0, self._left(deadline)))
        if not self.logs_in:
            return endpoint, ()
        async with self._login:
            if not self._token:
                self._token = await self._log_in(endpoint, self._left(deadline))
        return endpoint, (("token", self._token),)

    async def _log_in(self, endpoint: EtcdEndpoint, seconds: float) -> str:
        request = message(
            "AuthenticateRequest", name=self._settings.user, password=self._settings.password
        )
        with self._translated(AUTHENTICATE, endpoint):
            response = await endpoint.unary(AUTHENTICATE)(request, timeout=seconds)
        return str(response.token)

    @contextmanager
    def _translated(self, method: Method, endpoint: EtcdEndpoint) -> Iterator[None]:
        """Translate the errors of a call, and record whether the endpoint replied."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            endpoint.suspected = error.code() in (_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED)
            translated = translate(error, method, endpoint.target, logged_in=bool(self._token))
            if isinstance(translated, TokenRefused):
                self.forget_token()
            raise translated from None
        except grpc.aio.UsageError as error:
            raise MetadataUnavailable(f"the connection to etcd is gone: {error}") from None
        except asyncio.CancelledError:
            # A closed connection cancels its calls, which looks as if the caller was cancelled.
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise MetadataUnavailable("the connection to etcd was closed") from None
            raise
        endpoint.suspected = False

    def _deadline(self) -> float:
        return self._loop.time() + self._settings.call_seconds

    def _left(self, deadline: float) -> float:
        return deadline - self._loop.time()


def translate(error: Any, method: Method, target: str, *, logged_in: bool) -> Exception:
    """The PenstockError for a gRPC error; `logged_in` if the call carried a token."""
    code, details = error.code(), error.details() or ""
    sentence = f"etcd at {target}, {method.path}: {details} ({code.name.lower()})"
    if logged_in and is_token_trouble(details):
        return TokenRefused(sentence)
    if code is _Code.NOT_FOUND and _LEASE_GONE in details:
        return LeaseExpired(sentence)
    if code is _Code.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return ResponseTooLarge(sentence)
    return (MetadataRefused if code in _REFUSALS else MetadataUnavailable)(sentence)


def is_token_trouble(details: str) -> bool:
    """Whether etcd refused a call because the token expired or users changed."""
    return any(text in details for text in _TOKEN_TROUBLE)
