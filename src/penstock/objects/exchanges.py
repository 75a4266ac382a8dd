"""Small HTTP exchanges beside opendal: bounded in time and size, retried with backoff."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
from yarl import URL

from penstock.objects.calls import CallLimits

BODY_BYTES_MAX: Final = 8 << 20

_BUSY: Final = (408, 429)
_NOT_OFFERED: Final = 501


class Reply(NamedTuple):
    """What came back."""

    status: int
    body: bytes

    @property
    def may_pass(self) -> bool:
        """Whether the same request may get another answer later."""
        return (self.status >= 500 and self.status != _NOT_OFFERED) or self.status in _BUSY


class NoReply(Exception):
    """Nothing came back, after all retries; says why in one line."""


class Exchanges:
    """Requests without a body, over connections that are kept."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], retries_max: int | None = None
    ) -> Reply:
        """The reply to a request whose URL is already quoted; raises NoReply.

        A reply that may pass is returned only after the last retry.
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

    async def _once(self, method: str, url: str, headers: Mapping[str, str]) -> Reply:
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
            return Reply(response.status, bytes(body))


def backoff_seconds(attempt: int, limits: CallLimits) -> float:
    """Twice as long from one attempt to the next, up to a limit, and by chance up to twice that."""
    seconds = min(limits.retry_seconds_max, limits.retry_seconds_min * (1 << attempt))
    return seconds * (1 + random.random())  # noqa: S311 - spreads retries, hides nothing
