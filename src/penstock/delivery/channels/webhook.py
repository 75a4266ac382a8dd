"""One delivery to a callback: the request, and what its answer means.

Only 2xx is a success. Redirects are not followed: they would turn the payload into a GET of
somebody else's choosing. Of an answer's body no more than a little is read.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

import aiohttp

from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.schedule import retry_after

ANSWER_BYTES_MAX: Final = 16 << 10
IDLE_SECONDS: Final = 4.0
"""Connections are kept for the next call; many receivers close theirs after five seconds."""
ERROR_CHARACTERS_MAX: Final = 200
_GONE: Final = 410
_BUSY: Final = (429, 503)


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


class Caller:
    """Makes calls; close it at the end."""

    def __init__(self, addresses: Addresses, timeout_seconds: float) -> None:
        self._addresses = addresses
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, url: str, headers: Mapping[str, str], body: bytes, now_us: int) -> Outcome:
        """Post the body; never raises for what the other side does."""
        begun = time.perf_counter()
        try:
            async with self._open().post(
                url, data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                answer = await response.content.read(ANSWER_BYTES_MAX)
                wait = retry_after(response.headers.get("Retry-After", ""), now_us)
                good = 200 <= response.status < 300
                told = "" if good else answer[:ERROR_CHARACTERS_MAX].decode("utf-8", "replace")
                return Outcome(response.status, told, _since(begun), wait)
        except TimeoutError:
            return Outcome(0, f"no answer in {self._timeout.total:g} s", _since(begun))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(0, str(error) or type(error).__name__, _since(begun))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(
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


def _since(begun: float) -> float:
    return round(1e3 * (time.perf_counter() - begun), 3)
