"""When a process of ours is to stop: at SIGTERM or SIGINT, and at once at the second."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

import structlog

SIGNAL_EXIT_BASE: Final = 128
SECOND_SIGNAL_SECONDS: Final = 0.5
"""A signal to a group of processes comes twice when `make` or a shell passes it on as well."""

_events = structlog.get_logger()


class Stop:
    """Set by the first signal; what was acknowledged is safe when the second ends the process."""

    def __init__(self, who: str) -> None:
        """`who` stops is told with the event."""
        self._who = who
        self._event = asyncio.Event()
        self._at_seconds = 0.0

    def listen(self) -> None:
        """Take the signals from here on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    def _on_signal(self, number: signal.Signals) -> None:
        now_seconds = asyncio.get_running_loop().time()
        if not self._event.is_set():
            _events.info(f"{self._who} stopping", signal=number.name)
            self._at_seconds = now_seconds
            self._event.set()
        elif now_seconds - self._at_seconds >= SECOND_SIGNAL_SECONDS:
            os._exit(SIGNAL_EXIT_BASE + number)
