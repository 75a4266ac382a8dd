"""The HTTP application over a broker's real topics, asked without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.protocols.http.client import HttpSite, opened
from tests.unit.tiers.conftest import light, world
from tests.unit.tiers.core import World

__all__ = ["light", "world"]


@pytest_asyncio.fixture
async def server(world: World) -> AsyncIterator[HttpSite]:
    async with opened(world) as server:
        yield server
