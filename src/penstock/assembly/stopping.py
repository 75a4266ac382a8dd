"""Stops the process at SIGTERM or SIGINT, and immediately at the second signal."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

import structlog

SIGNAL_EXIT_BASE: Final = 128
SECOND_SIGNAL_SECONDS: Final = 0.5
"""Signals within this time count as one: `make` or a shell may forward a signal of a group."""

_events = structlog.get_logger()


class Stop:
    """A request to stop, set by the first signal; the second signal ends the process."""

    def __init__(self, process_name: str) -> None:
        """The log event names the process."""
        self._process_name = process_name
        self._event = asyncio.Event()
        self._at_seconds = 0.0

    def listen(self) -> None:
        """Handle the signals from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    def _on_signal(self, number: signal.Signals) -> None:
        now_seconds = asyncio.get_running_loop().time()
        if not self._event.is_set():
            _events.info(f"{self._process_name} stopping", signal=number.name)
            self._at_seconds = now_seconds
            self._event.set()
        elif now_seconds - self._at_seconds >= SECOND_SIGNAL_SECONDS:
            os._exit(SIGNAL_EXIT_BASE + number)
