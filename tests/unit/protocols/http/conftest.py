"""The HTTP application over a broker's real topics, asked without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.broker.http import HttpSite, opened
from tests.broker.storage import World


@pytest_asyncio.fixture
async def server(world: World) -> AsyncIterator[HttpSite]:
    async with opened(world) as server:
        yield server
