"""Writes the settlements of consumers and jobs to a log, one frame for each turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.host.tasks import Tasks
from penstock.model.errors import AppendQueueFull, LogClosed, PenstockError
from penstock.topics import OpenTopic


@dataclass(frozen=True, slots=True)
class SettlementFrame:
    """The settlements of one turn, encoded."""

    body: bytes
    count: int
    finished: Callable[[BaseException | None], object]
    """Called with None when the frame is durable, or with the error that prevented it."""


class SettlementWriter:
    """Appends settlement frames in order, each as soon as the queue of the log has room for it."""

    def __init__(self, opened: OpenTopic, collect: Callable[[], SettlementFrame | None]) -> None:
        """`collect` returns what has been settled since its last call, None if there is nothing."""
        self._opened, self._collect = opened, collect
        self._tasks = Tasks()
        self._appending = False
        self._next: asyncio.Future[None] | None = None
        self._last: asyncio.Future[None] | None = None

    def write(self) -> asyncio.Future[None]:
        """Write everything that is settled in this turn.

        The future completes when that is durable; it raises what prevents that.
        """
        if self._next is None:
            self._next = self._last = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(_retrieve_exception)
            if not self._appending:
                self._appending = True
                self._tasks.start(self._append_frames())
        return self._next

    def reject(self, error: BaseException) -> None:
        """Fail the write that is scheduled, whose settlements its owner has withdrawn."""
        if self._next is not None and not self._next.done():
            self._next.set_exception(error)

    async def durable(self) -> None:
        """Wait until everything settled so far is durable; raises what prevents that."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def close(self) -> None:
        """Wait until the pending frames are durable or have failed."""
        await self._tasks.drain()
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    async def _append_frames(self) -> None:
        """Append one frame for each turn until nothing is pending."""
        try:
            while self._next is not None:
                # Whatever else this turn settles belongs to the frame too.
                await asyncio.sleep(0)
                written, self._next = self._next, None
                frame = self._collect()
                if frame is not None:
                    await self._append(frame, written)
                elif not written.done():
                    written.set_result(None)
        finally:
            self._appending = False

    async def _append(self, frame: SettlementFrame, written: asyncio.Future[None]) -> None:
        """Append a frame; waits for room in the queue of the log if that is full."""
        error: PenstockError | None = None
        try:
            durable = self._opened.settle(frame.body, frame.count)
        except AppendQueueFull:
            try:
                await self._opened.settle_when_possible(frame.body, frame.count)
            except PenstockError as failure:
                error = failure
        except PenstockError as failure:
            error = failure
        else:
            durable.add_done_callback(partial(self._durable, frame, written))
            return
        _finish(frame, written, error)

    def _durable(
        self, frame: SettlementFrame, written: asyncio.Future[None], durable: asyncio.Future[None]
    ) -> None:
        error = LogClosed(self._opened.topic.name.full) if durable.cancelled() else None
        _finish(frame, written, error or durable.exception())


def _finish(
    frame: SettlementFrame, written: asyncio.Future[None], error: BaseException | None
) -> None:
    frame.finished(error)
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    """Mark an exception as retrieved: `finished` has received it, and nobody may be waiting."""
    if not future.cancelled():
        future.exception()
