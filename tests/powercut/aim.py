"""Cut the power, or kill the process, when a chosen part of the broker comes to a chosen step."""

from __future__ import annotations

from enum import Enum
from threading import Lock

import msgspec

from tests.powercut.switch import Switch


class Part(Enum):
    """Whose steps are counted."""

    LOG = "log"
    OBJECTS = "objects"
    METADATA = "metadata"


class Aim(msgspec.Struct, frozen=True):
    """The `nth` time a part comes to `step`: cut the power, or kill the process."""

    step: str
    nth: int
    delay_us: int = 0
    """How long into a step that is cut while it runs."""
    share: float = 0.5
    """How much of a torn write gets to the disk."""
    kill: bool = False
    part: Part = Part.LOG


class Trigger:
    """Presses the switch when the aim is reached, from any thread; counts steps once `armed`."""

    def __init__(self, switch: Switch, aim: Aim | None) -> None:
        self._switch = switch
        self._aim = aim
        self._count = 0
        self._lock = Lock()
        self.armed = False

    @property
    def share(self) -> float:
        """How much of a torn write gets to the disk."""
        return self._aim.share if self._aim is not None else 1.0

    def step(self, part: Part, step: str) -> None:
        """At a step: strike if this is it."""
        if self.reached(part, step):
            self.strike(step)

    def begin(self, part: Part, step: str) -> None:
        """At the begin of a step: strike while it runs, or a moment before it does."""
        if self.reached(part, step):
            assert self._aim is not None
            self._kill_if_wanted()
            self._switch.cut_soon(step, self._aim.delay_us / 1e6)

    def reached(self, part: Part, step: str) -> bool:
        aim = self._aim
        if not self.armed or aim is None or (part, step) != (aim.part, aim.step):
            return False
        with self._lock:
            self._count += 1
            return self._count == aim.nth

    def strike(self, step: str) -> None:
        self._kill_if_wanted()
        self._switch.cut(step)

    def _kill_if_wanted(self) -> None:
        if self._aim is not None and self._aim.kill:
            self._switch.kill()
