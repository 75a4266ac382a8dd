"""Fixtures of streams: the broker's parts without servers, and streams over them."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.tiers.conftest import light, world
from tests.unit.tiers.core import World
from tests.unit.topics.streaming import Streaming, stream_all

__all__ = ["light", "made", "world"]


@pytest_asyncio.fixture
async def made(world: World) -> AsyncIterator[Streaming]:
    """The streams of a broker, without servers."""
    streaming = await stream_all(world)
    yield streaming
    streaming.close()
