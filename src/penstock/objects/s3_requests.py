"""Signed requests to S3 that opendal does not offer, limited in time and size and retried.

Signatures follow version 4 as AWS documents it, as far as these requests need it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from penstock.objects.calls import CallLimits

BODY_BYTES_MAX: Final = 8 << 20

_BUSY: Final = (408, 429)
_NOT_OFFERED: Final = 501


class S3Response(NamedTuple):
    """The reply to a request."""

    status: int
    body: bytes

    @property
    def may_pass(self) -> bool:
        """Whether a retry may succeed."""
        return (self.status >= 500 and self.status != _NOT_OFFERED) or self.status in _BUSY


class NoReply(Exception):
    """There was no reply after all retries; the message is the reason in one line."""


class Exchanges:
    """Sends requests without a body over pooled connections."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], retries_max: int | None = None
    ) -> S3Response:
        """The reply to a request whose URL is already quoted; raises NoReply.

        Replies that a retry may change are returned only after the last retry.
        """
        retries = self._limits.retries_max if retries_max is None else retries_max
        for attempt in range(retries + 1):
            last = attempt == retries
            try:
                reply = await self._once(method, url, headers)
                if last or not reply.may_pass:
                    return reply
            except (aiohttp.ClientError, TimeoutError) as error:
                if last:
                    raise NoReply(f"{type(error).__name__} from {URL(url).host}") from None
            await asyncio.sleep(backoff_seconds(attempt, self._limits))
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _once(self, method: str, url: str, headers: Mapping[str, str]) -> S3Response:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._limits.request_seconds)
            )
        target = URL(url, encoded=True)
        async with self._session.request(
            method, target, headers=headers, allow_redirects=False
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise aiohttp.ClientPayloadError(f"over BODY_BYTES_MAX, {BODY_BYTES_MAX}")
            return S3Response(response.status, bytes(body))


def backoff_seconds(attempt: int, limits: CallLimits) -> float:
    """Exponential backoff up to a limit, with jitter of up to the same time again."""
    seconds = min(limits.retry_seconds_max, limits.retry_seconds_min * (1 << attempt))
    return seconds * (1 + random.random())  # noqa: S311 - spreads retries, hides nothing


ALGORITHM: Final = "AWS4-HMAC-SHA256"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
UNRESERVED: Final = "-_.~"


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Credentials to sign with; `repr` does not show them."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def query_string(query: Mapping[str, str]) -> str:
    """The query as it must be signed and sent."""
    pairs = sorted((quote(k, UNRESERVED), quote(v, UNRESERVED)) for k, v in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def quoted_path(path: str) -> str:
    """The path as it must be signed and sent."""
    return quote(path, f"/{UNRESERVED}")


def signed_headers(
    method: str,
    host: str,
    path: str,
    query: Mapping[str, str],
    credentials: S3Credentials,
    region: str,
    when: datetime,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The signed headers of a request without a body; `path` and `query` are not quoted yet."""
    time = when.strftime("%Y%m%dT%H%M%SZ")
    headers = {
        **(extra or {}),
        "host": host,
        "x-amz-content-sha256": EMPTY_SHA256,
        "x-amz-date": time,
    }
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
    canonical = "\n".join(
        [method, quoted_path(path), query_string(query), *lines, "", names, EMPTY_SHA256]
    )
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join([ALGORITHM, time, scope, digest])
    signature = _mac(_key(credentials.secret_key, scope), text).hex()
    headers["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _key(secret_key: str, scope: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = _mac(key, part)
    return key


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
