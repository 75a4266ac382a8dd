"""`penstock serve` whose event loop can be stalled from outside.

SIGUSR1 makes the loop sleep and SIGUSR2 makes it compute in pure Python, both for STALL_SECONDS.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Final

from penstock.assembly.broker import Broker
from penstock.cli import main

STALL_SECONDS: Final = "STALL_SECONDS"
"""The environment variable with the length of a stall."""


def spin(seconds: float) -> None:
    """Compute without a call that releases the GIL."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def sleep(seconds: float) -> None:
    """Block in a call that releases the GIL, under a name that shows in a stack."""
    time.sleep(seconds)


class StallingBroker(Broker):
    """A broker that obeys the two signals."""

    async def run(self) -> None:
        loop, seconds = asyncio.get_running_loop(), float(os.environ[STALL_SECONDS])
        loop.add_signal_handler(signal.SIGUSR1, sleep, seconds)
        loop.add_signal_handler(signal.SIGUSR2, spin, seconds)
        await super().run()


if __name__ == "__main__":
    import penstock.assembly.broker

    penstock.assembly.broker.Broker = StallingBroker  # type: ignore[misc]
    main()
