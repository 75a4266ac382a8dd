"""Waiting for what must happen, without saying how soon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

WAIT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.02


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once the condition holds; TimeoutError if it never does."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not await condition():
            await asyncio.sleep(PAUSE_SECONDS)
