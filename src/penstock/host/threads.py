"""Worker threads for calls that block and release the GIL: fsync, file reads, compression.

They are not for Python code that runs per row: a busy thread delays the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WorkerThreads:
    """A fixed number of threads that run calls in order and report results on the event loop."""

    def __init__(self, count: int, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._threads = [
            Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call` in a thread. It must not raise; it may use `report`."""
        if self._closed:
            raise RuntimeError("the worker threads are closed")
        self._calls.put(call)

    def report(self, callback: Callable[..., object], *args: object) -> None:
        """Run `callback` on the event loop; called by threads."""
        self._loop.call_soon_threadsafe(callback, *args)

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a blocking call in a thread; returns its result or raises its exception."""
        future: asyncio.Future[_T] = self._loop.create_future()

        def work() -> None:
            try:
                result = call(*args, **kwargs)
            except BaseException as error:
                self.report(_settle, future, None, error)
            else:
                self.report(_settle, future, result, None)

        self.submit(work)
        return await future

    async def close(self) -> None:
        """Finish submitted calls and end the threads; later calls fail."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(0)
                await asyncio.sleep(0.001)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
