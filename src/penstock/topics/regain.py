"""Topics that exist and are not served here: the errors, and the attempts to open them again.

A topic is lost with the lease, while the metadata store is away, or by mistake. A request opens it
at once. `Regain` opens topics without requests, because their uploads and retention must not wait
for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from penstock.host.tasks import Tasks
from penstock.model.errors import OwnedElsewhere, PenstockError, ResourceUnknown
from penstock.model.names import TopicName

RETRY_SECONDS: Final = 1.0
"""How long an error is returned before another attempt to open the topic."""


class _Trouble(NamedTuple):
    error: PenstockError
    until: float


class Troubles:
    """The last error of each topic; for `retry_seconds` it is raised without another attempt."""

    def __init__(self) -> None:
        self._troubles: dict[TopicName, _Trouble] = {}

    def note(self, name: TopicName, error: PenstockError, retry_seconds: float) -> None:
        until = asyncio.get_running_loop().time() + retry_seconds
        self._troubles[name] = _Trouble(error, until)

    def forget(self, name: TopicName) -> None:
        self._troubles.pop(name, None)

    def raise_last(self, name: TopicName) -> None:
        """Raise the error, if there is one."""
        if (trouble := self._troubles.get(name)) is not None:
            raise trouble.error.with_traceback(None)

    def raise_recent(self, name: TopicName) -> None:
        """Raise the error, if it is too early for another attempt."""
        trouble = self._troubles.get(name)
        if trouble is not None and asyncio.get_running_loop().time() < trouble.until:
            raise trouble.error.with_traceback(None)


PAUSE_SECONDS: Final = 1.0
"""Pause before each attempt: another broker may be quicker, or the store still away."""

_events = structlog.get_logger(__name__)


class Regain:
    """Opens lost topics, one after the other, until each is served, here or elsewhere."""

    def __init__(
        self,
        find: Callable[[TopicName], Awaitable[object]],
        is_settled_elsewhere: Callable[[TopicName], Awaitable[bool]],
    ) -> None:
        """`is_settled_elsewhere` returns whether a topic of another broker can be forgotten."""
        self._find, self._is_settled_elsewhere = find, is_settled_elsewhere
        self._lost: set[TopicName] = set()
        self._tasks, self._running = Tasks(), False

    def note(self, name: TopicName) -> None:
        """Add a topic that was just lost."""
        self._lost.add(name)
        if not self._running:
            self._running = True
            self._tasks.start(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while self._lost:
            await asyncio.sleep(PAUSE_SECONDS)
            for name in list(self._lost):
                if await self._is_settled(name):
                    self._lost.discard(name)
        self._running = False

    async def _is_settled(self, name: TopicName) -> bool:
        try:
            await self._find(name)
        except OwnedElsewhere as error:
            _events.info("topic_not_regained", topic=str(name), reason=str(error))
            return await self._is_forgettable(name)
        except ResourceUnknown:
            return True
        except PenstockError:
            return False
        _events.info("topic_regained", topic=str(name))
        return True

    async def _is_forgettable(self, name: TopicName) -> bool:
        try:
            return await self._is_settled_elsewhere(name)
        except (PenstockError, OSError) as error:
            _events.warning("log_not_set_aside", topic=str(name), reason=str(error))
            return False
