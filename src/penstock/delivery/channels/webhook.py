"""One delivery to a callback: the request, and what its answer means.

Only 2xx is a success. Redirects are not followed: they would turn the payload into a GET of
somebody else's choosing. The head of an answer decides; its body only explains an error. Of an
answer no more than `ANSWER_BYTES_MAX` is parsed, however much the receiver sends.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.schedule import retry_after

ANSWER_BYTES_MAX: Final = 64 << 10
"""Of one answer: interim answers, head and body."""
BODY_BYTES_MAX: Final = 16 << 10
BODY_SECONDS: Final = 1.0
"""How long a call waits for the beginning of a body once it has the head."""
IDLE_SECONDS: Final = 4.0
"""Connections are kept for the next call; many receivers close theirs after five seconds."""
ERROR_CHARACTERS_MAX: Final = 200
_GONE: Final = 410
_BUSY: Final = (429, 503)


Fields: TypeAlias = Sequence[tuple[str, str]]
"""Names and values of headers, in order; a name may be there several times."""


class Verdict(Enum):
    """What becomes of the job."""

    DELIVERED = "delivered"
    FAILED = "failed"
    BUSY = "busy"
    """Failed, and the consumer asks for a pause."""
    GONE = "gone"
    """Failed, and the consumer wants no more."""


class Outcome(NamedTuple):
    """How a call went; without an answer the status is 0."""

    status: int
    error: str
    latency_ms: float
    retry_after_seconds: float | None = None

    @property
    def verdict(self) -> Verdict:
        if 200 <= self.status < 300:
            return Verdict.DELIVERED
        if self.status == _GONE:
            return Verdict.GONE
        if self.status in _BUSY and self.retry_after_seconds is not None:
            return Verdict.BUSY
        return Verdict.FAILED


class AddressClosed(OSError):
    """A callback leads to an address that is not open to callbacks."""


class AnswerTooLong(aiohttp.ClientError):
    """A receiver sent more than is read of an answer."""

    def __init__(self) -> None:
        super().__init__(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")


class Caller:
    """Makes calls; close it at the end."""

    def __init__(self, addresses: Addresses, timeout_seconds: float) -> None:
        self._addresses = addresses
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, url: str, headers: Fields, body: bytes, now_us: int) -> Outcome:
        """Post the body; never raises for what the other side does."""
        begun = time.perf_counter()
        try:
            async with self._open().post(
                url, data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                latency_ms = _since(begun)
                wait = retry_after(response.headers.get("Retry-After", ""), now_us)
                text = await _start_of_body(response)
                good = 200 <= response.status < 300
                return Outcome(response.status, "" if good else text, latency_ms, wait)
        except TimeoutError:
            return Outcome(0, f"no answer in {self._timeout.total:g} s", _since(begun))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(0, _reason(error), _since(begun))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = _Connector(
                limit=0,
                use_dns_cache=False,
                keepalive_timeout=IDLE_SECONDS,
                socket_factory=self._socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding",),
                trust_env=False,
            )
        return self._session

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket for a connection to exactly this address, if it is open."""
        family, kind, protocol, _, target = address
        if not self._addresses.open(target[0]):
            told = "is not open to callbacks; channels.push.allow_networks opens networks"
            raise AddressClosed(errno.EACCES, f"{target[0]} {told}")
        return socket.socket(family=family, type=kind, proto=protocol)


class _BoundedAnswers(ResponseHandler):
    """Parses at most ANSWER_BYTES_MAX of each answer on a connection, then cuts the connection.

    Without it interim answers (1xx), of which HTTP allows any number, would occupy the event loop
    for as long as the receiver sends them.
    """

    _bytes_left = ANSWER_BYTES_MAX

    def set_response_params(self, **params: Any) -> None:
        """A request begins."""
        self._bytes_left = ANSWER_BYTES_MAX
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        if not data or self._bytes_left:
            super().data_received(data[: self._bytes_left])
        if len(data) <= self._bytes_left:
            self._bytes_left -= len(data)
            return
        self._bytes_left = 0
        if self.transport is not None:
            self.set_exception(AnswerTooLong())
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    """Makes connections whose answers are bounded."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # aiohttp has no public way to bound what it parses.
        self._factory = cast("partial[ResponseHandler]", partial(_BoundedAnswers, loop=self._loop))


async def _start_of_body(response: aiohttp.ClientResponse) -> str:
    """The first characters of the body; empty when it is late, broken or too long."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await response.content.read(BODY_BYTES_MAX)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ""
    return body[:ERROR_CHARACTERS_MAX].decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    """What went wrong, in text that can be stored whatever bytes the receiver sent."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed before there was an answer"
    if isinstance(error, aiohttp.ClientResponseError):
        text = f"the answer is not valid HTTP: {error.message}"
    else:
        text = str(error) or type(error).__name__
    return text[:ERROR_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def _since(begun: float) -> float:
    return round(1e3 * (time.perf_counter() - begun), 3)
