"""Fixtures of streams: the broker's parts without servers, and streams over them."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.broker.storage import World
from tests.broker.streams import Streaming, stream_all


@pytest_asyncio.fixture
async def made(world: World) -> AsyncIterator[Streaming]:
    """The streams of a broker, without servers."""
    streaming = await stream_all(world)
    yield streaming
    streaming.close()
