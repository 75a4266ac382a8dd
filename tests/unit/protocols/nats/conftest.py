"""The fixtures of the tiers, and streams."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.protocols.nats.streaming import Asker, Streaming
from tests.unit.tiers.conftest import light, world
from tests.unit.tiers.core import World

__all__ = ["light", "world"]


@pytest_asyncio.fixture
async def streaming(world: World) -> AsyncIterator[Streaming]:
    async with Streaming(world) as streaming:
        yield streaming


@pytest_asyncio.fixture
async def asker(streaming: Streaming) -> Asker:
    return streaming.asker
