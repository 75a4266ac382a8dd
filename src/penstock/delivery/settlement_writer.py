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
    """How many settlements the body has. A frame of none is not written."""
    finished: Callable[[BaseException | None], object]
    """Receives None when this frame and all before it are durable, or the error of this frame."""


class SettlementWriter:
    """Appends settlement frames in order, each as soon as the queue of the log has room for it."""

    def __init__(self, opened: OpenTopic, collect: Callable[[], SettlementFrame]) -> None:
        """`collect` returns what has been settled since its last call."""
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
            self._next = asyncio.get_running_loop().create_future()
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
        last = self._next or self._last
        if last is not None:
            await asyncio.shield(last)

    async def close(self) -> None:
        """Wait until the pending frames are durable or have failed."""
        await self._tasks.drain()
        if self._last is not None:
            await asyncio.wait([self._last])

    async def _append_frames(self) -> None:
        """Append frames until nothing is pending."""
        try:
            while self._next is not None:
                written, self._next = self._next, None
                previous, self._last = self._last, written
                frame = self._collect()
                if frame.count:
                    await self._append(frame, written)
                elif previous is None or previous.done():
                    _finish(frame, written, None)
                else:
                    previous.add_done_callback(partial(_copy_result, frame, written))
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
        if durable.cancelled():
            _finish(frame, written, LogClosed(self._opened.topic.name.full))
        else:
            _finish(frame, written, durable.exception())


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


def _copy_result(
    frame: SettlementFrame, written: asyncio.Future[None], previous: asyncio.Future[None]
) -> None:
    """Finish a frame without settlements as the frame before it."""
    _finish(frame, written, None if previous.cancelled() else previous.exception())


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    """Mark an exception as retrieved: `finished` has received it, and nobody may be waiting."""
    if not future.cancelled():
        future.exception()
