"""A client for asyncio: any number of requests at a time.

aiohttp is imported with the first request, so that importing the package stays cheap.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final

from penstock.client.exchange import (
    REPLY_SECONDS,
    BrokerReply,
    BrokerRequest,
    BrokerUnreachable,
)
from penstock.client.operations import AsyncOperations
from penstock.model import names

if TYPE_CHECKING:
    import aiohttp

CONNECTIONS_MAX: Final = 1000


class Client(AsyncOperations):
    """An asyncio client of one broker; use it with `async with`, on one event loop.

    It has the methods of SyncClient, to be awaited. Raises BrokerRefused with the broker's message,
    and BrokerUnreachable.
    """

    def __init__(
        self, url: str | None = None, namespace: str = str(names.DEFAULT_NAMESPACE)
    ) -> None:
        super().__init__(url, namespace)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _exchange(self, request: BrokerRequest) -> BrokerReply:
        import aiohttp

        session = self._session = self._session or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
        )
        try:
            async with session.request(
                request.method,
                f"{self.url}{request.path}",
                data=request.body or None,
                headers=request.all_headers,
                timeout=aiohttp.ClientTimeout(REPLY_SECONDS + request.wait_seconds),
            ) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                return BrokerReply(response.status, await response.read(), headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise BrokerUnreachable(self.url, reason) from error
