"""The power switch in the child's hand: it can be pressed from any thread, and works once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Lock, Thread

from tests.powercut.facts import Cut, Cutting, Tell
from tests.powercut.image import cut_power


class Switch:
    """Cuts the power of the file system that holds `directory`, or kills this process."""

    def __init__(self, directory: Path, tell: Tell) -> None:
        self._directory = directory
        self._tell = tell
        self._lock = Lock()
        self._pressed = False

    @property
    def pressed(self) -> bool:
        return self._pressed

    def cut(self, step: str) -> None:
        """The power is off on return."""
        with self._lock:
            if not self._pressed:
                self._pressed = True
                self._tell(Cutting(step))
                cut_power(self._directory)
                self._tell(Cut())

    def cut_soon(self, step: str, delay_seconds: float) -> None:
        """Goes on at once; the power is cut meanwhile."""

        def wait_and_cut() -> None:
            time.sleep(delay_seconds)
            self.cut(step)

        Thread(target=wait_and_cut, daemon=True).start()

    def kill(self) -> None:
        """Never returns."""
        os.kill(os.getpid(), signal.SIGKILL)
