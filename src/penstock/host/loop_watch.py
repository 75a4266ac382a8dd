"""Detects stalls of the event loop: how long they last, and in which code.

A thread schedules a call on the loop every few milliseconds and waits until it runs. So it notices
a stall while it lasts, and reads its cause from the stack of the loop's thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from threading import Event, get_ident
from typing import Final, NamedTuple

import structlog

from penstock.host.threads import WorkerThreads
from penstock.model.metrics import Histogram, Metric, single

INTERVAL_SECONDS: Final = 0.02
"""Interval between calls; a stall is measured at most this much too short."""

STALL_SECONDS: Final = 0.1
"""A loop that needs longer than this to run a call is stalled."""

LONG_STALL_SECONDS: Final = 5.0
"""A stall of this length is also reported before it ends, as it may never end."""

FRAMES_MAX: Final = 8


class Stall(NamedTuple):
    """A stall of the loop."""

    seconds: float
    frames: list[str]
    """The stack when the stall was noticed, innermost first: `module:line function`."""
    ended: bool


class LoopWatch:
    """Watches the running loop until `close`; calls `on_stall` in its own thread."""

    def __init__(self, on_stall: Callable[[Stall], None]) -> None:
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._loop_thread = get_ident()
        self._answered, self._stopping = Event(), Event()
        self._answered_at = 0.0
        self._thread = WorkerThreads(1, "loop-watch")
        self._thread.submit(self._watch)

    async def close(self) -> None:
        self._stopping.set()
        await self._thread.close()

    def _watch(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            self._answered.clear()
            called_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer)
            if not self._answered.wait(STALL_SECONDS):
                self._report(called_at)

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._answered.set()

    def _report(self, called_at: float) -> None:
        frames = self._frames()
        if not self._answered.wait(LONG_STALL_SECONDS - STALL_SECONDS):
            self._on_stall(Stall(time.monotonic() - called_at, self._frames(), False))
            self._answered.wait()
        seconds = self._answered_at - called_at
        # This thread may have been late, not the loop.
        if seconds >= STALL_SECONDS:
            self._on_stall(Stall(seconds, frames, True))

    def _frames(self) -> list[str]:
        frame, found = sys._current_frames().get(self._loop_thread), list[str]()  # noqa: SLF001
        while frame is not None and len(found) < FRAMES_MAX:
            module = frame.f_globals.get("__name__", "")
            found.append(f"{module}:{frame.f_lineno} {frame.f_code.co_qualname}")
            frame = frame.f_back
        return found


BOUNDS_MS: Final = (250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0)

_events = structlog.get_logger(__name__)


class LoopStalls:
    """Logs and counts the stalls of the running loop until `close`."""

    def __init__(self) -> None:
        self._stall_ms = Histogram(BOUNDS_MS)
        self._max_ms = 0.0
        self._watch = LoopWatch(self._on_stall)

    def metrics(self) -> list[Metric]:
        return [
            single(
                "penstock_loop_stall_ms",
                "histogram",
                "Stalls of the event loop over 100 ms.",
                self._stall_ms,
            ),
            single(
                "penstock_loop_stall_max_ms",
                "gauge",
                "The longest stall of the event loop since the start.",
                self._max_ms,
            ),
        ]

    async def close(self) -> None:
        await self._watch.close()

    def _on_stall(self, stall: Stall) -> None:
        event = "loop_stalled" if stall.ended else "loop_stall_lasts"
        _events.warning(event, seconds=round(stall.seconds, 3), frames=stall.frames)
        if stall.ended:
            self._stall_ms.observe(stall.seconds * 1000)
            self._max_ms = max(self._max_ms, stall.seconds * 1000)
