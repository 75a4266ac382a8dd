"""Topics that exist and are not served here: the errors, and the attempts to open them again.

A topic is lost with the lease, while the metadata store is away, or by mistake. A request opens it
at once. `LostTopics` opens topics without requests, because their uploads and retention must not
wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from penstock.host.tasks import Tasks
from penstock.model.errors import OwnedElsewhere, PenstockError, ResourceUnknown
from penstock.model.names import TopicName

PAUSE_SECONDS: Final = 1.0
"""Pause before each attempt: another broker may be quicker, or the store still away."""

_events = structlog.get_logger(__name__)


class _OpenError(NamedTuple):
    error: PenstockError
    until: float
    """The event loop's time before which no other attempt is made."""


class OpenErrors:
    """The last error of opening each topic."""

    def __init__(self) -> None:
        self._errors: dict[TopicName, _OpenError] = {}

    def note(self, name: TopicName, error: PenstockError, retry_seconds: float) -> None:
        """Remember an error; `raise_recent` raises it for `retry_seconds`."""
        until = asyncio.get_running_loop().time() + retry_seconds
        self._errors[name] = _OpenError(error, until)

    def forget(self, name: TopicName) -> None:
        self._errors.pop(name, None)

    def raise_last(self, name: TopicName) -> None:
        """Raise the error, if there is one."""
        if (last := self._errors.get(name)) is not None:
            raise last.error.with_traceback(None)

    def raise_recent(self, name: TopicName) -> None:
        """Raise the error, if it is too early for another attempt."""
        last = self._errors.get(name)
        if last is not None and asyncio.get_running_loop().time() < last.until:
            raise last.error.with_traceback(None)


class LostTopics:
    """Opens lost topics, one after the other, until each is served, here or elsewhere."""

    def __init__(
        self,
        find: Callable[[TopicName], Awaitable[object]],
        is_settled_elsewhere: Callable[[TopicName], Awaitable[bool]],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """`is_settled_elsewhere` returns whether a topic of another broker can be forgotten."""
        self._find, self._is_settled_elsewhere = find, is_settled_elsewhere
        self._pause_seconds = pause_seconds
        self._names: set[TopicName] = set()
        self._tasks, self._running = Tasks(), False

    def add(self, name: TopicName) -> None:
        """Add a topic that was just lost."""
        self._names.add(name)
        if not self._running:
            self._running = True
            self._tasks.start(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while self._names:
            await asyncio.sleep(self._pause_seconds)
            for name in list(self._names):
                if await self._is_settled(name):
                    self._names.discard(name)
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
