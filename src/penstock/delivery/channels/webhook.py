"""Calls a callback: the signed request, and the meaning of its response.

Only 2xx is a success. Redirects are not followed: they would turn the payload into a GET of a URL
that the receiver chooses. The status and headers of a response decide; its body only explains an
error. At most `RESPONSE_BYTES_MAX` of a response are parsed, however much the receiver sends.

Deliveries are signed as Standard Webhooks defines, so that receivers can use its libraries:

    webhook-id: {id}      webhook-timestamp: {seconds}      webhook-signature: v1,{base64} v1,...

A signature is HMAC-SHA256 over `{id}.{seconds}.{body}`. During a change of secrets there is one
signature for each.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import hmac
import socket
import time
from collections.abc import Iterable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from penstock.delivery.channels.addresses import Addresses
from penstock.host.entropy import random_bytes

RESPONSE_BYTES_MAX: Final = 64 << 10
"""Limit of one response: interim responses, headers and body."""
BODY_BYTES_MAX: Final = 16 << 10
BODY_SECONDS: Final = 1.0
"""How long a call waits for the start of the body after the headers of a response."""
IDLE_SECONDS: Final = 4.0
"""How long an idle connection stays open; many receivers close theirs after five seconds."""
ERROR_CHARACTERS_MAX: Final = 200
RETRY_AFTER_SECONDS_MAX: Final = 86_400
"""Maximum delay that a receiver can request."""
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix
SECRET_BYTES: Final = 32
_GONE: Final = 410
_BUSY: Final = (429, 503)


Fields: TypeAlias = Sequence[tuple[str, str]]
"""Names and values of headers, in order; a name may occur several times."""


class CallResult(Enum):
    """How a call ended for its job and its endpoint."""

    DELIVERED = "delivered"
    FAILED = "failed"
    BUSY = "busy"
    """Failed, and the endpoint requests a pause."""
    GONE = "gone"
    """Failed, and the endpoint exists no more."""


class Outcome(NamedTuple):
    """The response to a call; without a response the status is 0."""

    status: int
    error: str
    latency_ms: float
    retry_after_seconds: float | None = None

    @property
    def result(self) -> CallResult:
        if 200 <= self.status < 300:
            return CallResult.DELIVERED
        if self.status == _GONE:
            return CallResult.GONE
        if self.status in _BUSY and self.retry_after_seconds is not None:
            return CallResult.BUSY
        return CallResult.FAILED


class AddressRefused(OSError):
    """The address of a callback is not open to callbacks."""


class ResponseTooLong(aiohttp.ClientError):
    """A receiver sent a response that exceeds the limit."""

    def __init__(self) -> None:
        super().__init__(f"the answer is longer than {RESPONSE_BYTES_MAX} bytes")


class WebhookClient:
    """Calls callbacks."""

    def __init__(self, addresses: Addresses, timeout_seconds: float) -> None:
        self._addresses = addresses
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, url: str, headers: Fields, body: bytes, now_us: int) -> Outcome:
        """Post a body; the receiver's failures are outcomes, not exceptions."""
        begun = time.perf_counter()
        try:
            async with self._open().post(
                url, data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                latency_ms = _since(begun)
                wait = retry_after(response.headers.get("Retry-After", ""), now_us)
                text = await _start_of_body(response)
                succeeded = 200 <= response.status < 300
                return Outcome(response.status, "" if succeeded else text, latency_ms, wait)
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
            refusal = "is not open to callbacks; channels.push.allow_networks opens networks"
            raise AddressRefused(errno.EACCES, f"{target[0]} {refusal}")
        return socket.socket(family=family, type=kind, proto=protocol)


class _BoundedResponses(ResponseHandler):
    """Parses at most RESPONSE_BYTES_MAX of each response, then aborts the connection.

    HTTP allows any number of interim responses (1xx). Without the limit they would occupy the event
    loop for as long as a receiver sends them.
    """

    _bytes_left = RESPONSE_BYTES_MAX

    def set_response_params(self, **params: Any) -> None:
        """Start to read the response to a new request."""
        self._bytes_left = RESPONSE_BYTES_MAX
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        if not data or self._bytes_left:
            super().data_received(data[: self._bytes_left])
        if len(data) <= self._bytes_left:
            self._bytes_left -= len(data)
            return
        self._bytes_left = 0
        if self.transport is not None:
            self.set_exception(ResponseTooLong())
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    """Opens connections that bound their responses."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # aiohttp has no public way to bound what it parses.
        self._factory = cast(
            "partial[ResponseHandler]", partial(_BoundedResponses, loop=self._loop)
        )


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


def retry_after(value: str, now_us: int) -> float | None:
    """The delay in a Retry-After header, which has seconds or a date; None if it is neither."""
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return float(min(int(value[:12]), RETRY_AFTER_SECONDS_MAX))
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = moment.timestamp() - now_us / 1e6
    return min(max(seconds, 0.0), float(RETRY_AFTER_SECONDS_MAX))


# -- signatures


def new_secret() -> str:
    """A random signing secret."""
    return SECRET_PREFIX + base64.b64encode(random_bytes(SECRET_BYTES)).decode()


def signing_key(secret: str) -> bytes:
    """The key in a signing secret; raises ValueError if the secret is malformed."""
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a secret must be {SECRET_PREFIX} and base64") from error


def signed_id(message_id: str) -> str:
    """The message id as signed: without dots, which would end it early in the signed content."""
    return message_id.replace(".", "_")


def signatures(keys: Iterable[bytes], id_: str, seconds: int, body: bytes) -> str:
    """The value of the signature header."""
    content = b"%b.%d.%b" % (id_.encode(), seconds, body)
    return " ".join(
        "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys
    )
