"""Take up again what was lost: with the lease, while the metadata store was away, or by mistake.

Whoever asks for a topic opens it at once. This is for topics that nobody asks for: what they have
not uploaded yet, and what they keep for too long, does not wait for a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from penstock.model.errors import OwnedElsewhere, PenstockError, ResourceUnknown
from penstock.model.names import TopicName

PAUSE_SECONDS: Final = 1.0
"""Before each attempt: another broker may be quicker, or the store not be back yet."""

_events = structlog.get_logger(__name__)


class Regain:
    """Tries to open lost topics, one after the other, until each is served, here or elsewhere."""

    def __init__(self, find: Callable[[TopicName], Awaitable[object]]) -> None:
        self._find = find
        self._lost: set[TopicName] = set()
        self._task: asyncio.Task[None] | None = None

    def note(self, name: TopicName) -> None:
        """This topic was lost just now."""
        self._lost.add(name)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._lost:
            await asyncio.sleep(PAUSE_SECONDS)
            for name in list(self._lost):
                if await self._is_settled(name):
                    self._lost.discard(name)
        self._task = None

    async def _is_settled(self, name: TopicName) -> bool:
        try:
            await self._find(name)
        except (OwnedElsewhere, ResourceUnknown) as error:
            _events.info("topic_not_regained", topic=str(name), reason=str(error))
            return True
        except PenstockError:
            return False
        _events.info("topic_regained", topic=str(name))
        return True
