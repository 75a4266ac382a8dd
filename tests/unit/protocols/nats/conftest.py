"""The fixtures of the tiers, and streams."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.broker.jetstream import Asker, Streaming
from tests.broker.storage import World


@pytest_asyncio.fixture
async def streaming(world: World) -> AsyncIterator[Streaming]:
    async with Streaming(world) as streaming:
        yield streaming


@pytest_asyncio.fixture
async def asker(streaming: Streaming) -> Asker:
    return streaming.asker
