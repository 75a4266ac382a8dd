"""Shares one running task among all callers that need its result at the same time.

`fetch(key)` starts a task if none runs for the key, and joins the running one otherwise. When the
task ends, its key is free before the callers receive the result. A caller that is cancelled leaves
the others waiting; the task is cancelled when its last caller is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable
from typing import Any, Generic, TypeVar

from penstock.host.tasks import Tasks
from penstock.metadata.interface import MetadataUnavailable

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class _Flight(Generic[_V]):
    def __init__(self, task: asyncio.Task[_V], forget: Callable[[_Flight[_V]], None]) -> None:
        self._task, self._forget = task, forget
        self.callers = 0
        task.add_done_callback(self._ended)

    @property
    def done(self) -> bool:
        return self._task.done()

    async def result(self) -> _V:
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self.callers -= 1
            if not self.callers and not self._task.done():
                self._forget(self)
                self._task.cancel()
            raise
        if self._task.cancelled():
            # Not CancelledError, since this caller was not cancelled.
            raise MetadataUnavailable("the request was given up while others waited for it")
        return self._task.result()

    def _ended(self, task: asyncio.Task[_V]) -> None:
        """Free the key before any caller continues: this callback was registered first."""
        self._forget(self)
        if not task.cancelled():
            # Retrieved here, so that the loop does not report an error that no caller received.
            task.exception()


class SharedResult(Generic[_V]):
    """The result, for one await; raises the error of the task."""

    def __init__(self, flight: _Flight[_V], *, started: bool) -> None:
        self._flight = flight
        self.started = started
        """Whether this caller started the task; otherwise it joined a running one."""
        flight.callers += 1

    def __await__(self) -> Generator[Any, None, _V]:
        return self._flight.result().__await__()


class SingleFlight(Generic[_K, _V]):
    """Running tasks by key; belongs to the event loop that uses it, and caches no results."""

    def __init__(self) -> None:
        self._flights: dict[_K, _Flight[_V]] = {}
        self._tasks = Tasks()

    def __len__(self) -> int:
        return len(self._flights)

    def fetch(self, key: _K, load: Callable[[], Coroutine[Any, Any, _V]]) -> SharedResult[_V]:
        """Join the task of this key, or start `load` as one; await the returned object."""
        flight = self._flights.get(key)
        if flight is not None and not flight.done:
            return SharedResult(flight, started=False)

        def forget(flight: _Flight[_V]) -> None:
            if self._flights.get(key) is flight:
                del self._flights[key]

        flight = self._flights[key] = _Flight(self._tasks.start(load()), forget)
        return SharedResult(flight, started=True)
