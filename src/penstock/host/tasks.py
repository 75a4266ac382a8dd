"""Tasks, timers, locks and retry delays of the event loop, each with an owner that ends it.

Every other module uses these instead of `create_task`, `call_later` and `call_at`, so that there is
one rule for shutdown and cancellation, and one place that a simulated loop must replace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)


class Tasks:
    """The tasks that one object has started and not finished yet.

    An exception that a task raises is reported by the event loop unless another task awaits it.
    """

    __slots__ = ("_running",)

    def __init__(self) -> None:
        # Thousands of objects own tasks and have none: an empty set would take 216 bytes in each.
        self._running: set[asyncio.Task[Any]] | tuple[()] = ()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._running))

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run `work` as a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        if isinstance(self._running, tuple):
            self._running = set()
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def drain(self, seconds: float | None = None) -> None:
        """Wait until every task is done, including tasks that start during the wait.

        Tasks that are still running after `seconds` are cancelled.
        """
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while self._running:
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                await self.cancel()
                return
            await asyncio.wait(tuple(self._running), timeout=left)

    async def cancel(self) -> None:
        """Cancel every task and wait until all have ended."""
        while self._running:
            for task in tuple(self._running):
                task.cancel()
            await asyncio.wait(tuple(self._running))


class Timer:
    """Calls a function once, at a time of the event loop's clock that may be moved."""

    __slots__ = ("_call", "_handle", "_when")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        # uvloop returns a plain Handle, which does not know its time, for a call that is due.
        self._handle: asyncio.Handle | None = None
        self._when = 0.0

    @property
    def when(self) -> float | None:
        """The loop's time of the next call; None while no call is due."""
        return None if self._handle is None else self._when

    def at(self, when: float) -> None:
        """Call at this time of the loop, instead of when it was due before."""
        self.stop()
        self._when = when
        self._handle = asyncio.get_running_loop().call_at(when, self._fire)

    def after(self, seconds: float) -> None:
        """Call in `seconds`, instead of when it was due before."""
        self.at(asyncio.get_running_loop().time() + seconds)

    def at_latest(self, when: float) -> None:
        """Call at this time or earlier, if an earlier call is due already."""
        if self._handle is None or when < self._when:
            self.at(when)

    def stop(self) -> None:
        """Make no call, unless the timer is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._call()


class KeyedLocks(Generic[_K]):
    """A lock for every key; a lock that no task holds or waits for takes no memory."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[_K, asyncio.Lock] = WeakValueDictionary()

    def __getitem__(self, key: _K) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


class Backoff:
    """Delays between attempts: each is twice the last one, up to a limit."""

    def __init__(self, first_seconds: float, seconds_max: float) -> None:
        self._first_seconds, self._seconds_max = first_seconds, seconds_max
        self._next_seconds = first_seconds

    def next_seconds(self) -> float:
        """The delay before the next attempt."""
        seconds = self._next_seconds
        self._next_seconds = min(seconds * 2, self._seconds_max)
        return seconds

    def reset(self) -> None:
        """Begin with the first delay again; an attempt has succeeded."""
        self._next_seconds = self._first_seconds

    async def pause(self) -> None:
        """Wait for the next delay."""
        await asyncio.sleep(self.next_seconds())
