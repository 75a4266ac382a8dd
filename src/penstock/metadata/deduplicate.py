"""One piece of work for all who want the same at the same time.

fetch: nobody works on the key -> start, Miss      somebody does -> join, Wait
the work ends (value, error, cancelled) -> the key is free, then everybody is told
somebody gives up -> the others go on waiting; the last one to give up ends the work
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable
from typing import Any, Generic, TypeVar

from penstock.metadata.interface import MetadataUnavailable

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class _Work(Generic[_V]):
    def __init__(self, task: asyncio.Task[_V], forget: Callable[[_Work[_V]], None]) -> None:
        self._task, self._forget = task, forget
        self.interested = 0
        task.add_done_callback(self._ended)

    @property
    def done(self) -> bool:
        return self._task.done()

    async def result(self) -> _V:
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self.interested -= 1
            if not self.interested and not self._task.done():
                self._forget(self)
                self._task.cancel()
            raise
        if self._task.cancelled():
            # Not CancelledError: whoever waits here was not cancelled.
            raise MetadataUnavailable("the request was given up while others waited for it")
        return self._task.result()

    def _ended(self, task: asyncio.Task[_V]) -> None:
        """Runs before anybody who waits does: it was registered first."""
        self._forget(self)
        if not task.cancelled():
            # Asked for here, so that an error nobody waited for is not reported as lost.
            task.exception()


class Fetch(Generic[_V]):
    """The value, for whoever awaits it, once; raises what the work raised."""

    def __init__(self, work: _Work[_V]) -> None:
        self._work = work
        work.interested += 1

    def __await__(self) -> Generator[Any, None, _V]:
        return self._work.result().__await__()


class Wait(Fetch[_V]):
    """Somebody else's work is under way."""


class Miss(Fetch[_V]):
    """The work was begun for this one."""


class Deduplicate(Generic[_K, _V]):
    """Work under way by key; belongs to the loop it is used on, and keeps no results."""

    def __init__(self) -> None:
        self._works: dict[_K, _Work[_V]] = {}

    def __len__(self) -> int:
        return len(self._works)

    def fetch(self, key: _K, load: Callable[[], Coroutine[Any, Any, _V]]) -> Wait[_V] | Miss[_V]:
        """Join the work on this key, or begin it with `load`; await what is returned."""
        work = self._works.get(key)
        if work is not None and not work.done:
            return Wait(work)

        def forget(work: _Work[_V]) -> None:
            if self._works.get(key) is work:
                del self._works[key]

        work = self._works[key] = _Work(asyncio.create_task(load()), forget)
        return Miss(work)
