"""Disks that cut the power or kill the process at a chosen step, and disks that do not sync."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from penstock.host.disk import Buffer, Disk
from tests.powercut.switch import Switch

STEPS: Final = (
    "before write",
    "torn write",
    "after write",
    "during sync",
    "after sync",
    "during create",
    "before sync_directory",
    "during sync_directory",
    "after sync_directory",
    "before remove",
    "after remove",
)
"""Steps of a busy log; `before sync_directory` is between a rename and its becoming durable."""

RECOVERY_STEPS: Final = (
    "before truncate",
    "after truncate",
    "before write",
    "torn write",
    "during sync",
    "after sync",
    "during create",
    "before sync_directory",
    "during sync_directory",
    "after sync_directory",
)


class Aim(msgspec.Struct, frozen=True):
    """The `nth` time the disk comes to `step`: cut the power, or kill the process."""

    step: str
    nth: int
    delay_us: int = 0
    """How long into a step that is cut while it runs."""
    share: float = 0.5
    """How much of a torn write gets to the disk."""
    kill: bool = False


class AimedDisk(Disk):
    """A true disk until the aim is reached; `armed` says whether steps are counted already."""

    def __init__(self, switch: Switch, aim: Aim | None) -> None:
        self._switch = switch
        self._aim = aim
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self.armed = False

    def write(self, fd: int, pieces: Sequence[Buffer]) -> None:
        self._step("before write")
        if self._reached("torn write"):
            assert self._aim is not None
            data = b"".join(pieces)
            os.write(fd, data[: int(len(data) * self._aim.share)])
            # As if the kernel had written back just this much by now.
            os.fdatasync(fd)
            self._strike("torn write")
        super().write(fd, pieces)
        self._step("after write")

    def sync(self, fd: int) -> None:
        self._while("sync", lambda: super(AimedDisk, self).sync(fd))

    def sync_filesystem(self, fd: int) -> None:
        self._while("sync", lambda: super(AimedDisk, self).sync_filesystem(fd))

    def sync_directory(self, directory: Path) -> None:
        self._step("before sync_directory")
        self._while("sync_directory", lambda: super(AimedDisk, self).sync_directory(directory))

    def create(self, path: Path, pieces: Sequence[Buffer]) -> int:
        if self._reached("during create"):
            self._strike_soon("during create")
        return super().create(path, pieces)

    def truncate(self, fd: int, size: int) -> None:
        self._step("before truncate")
        super().truncate(fd, size)
        self._step("after truncate")

    def remove(self, path: Path) -> None:
        self._step("before remove")
        super().remove(path)
        self._step("after remove")

    def _while(self, step: str, call: Callable[[], None]) -> None:
        if self._reached(f"during {step}"):
            self._strike_soon(f"during {step}")
        call()
        self._step(f"after {step}")

    def _step(self, step: str) -> None:
        if self._reached(step):
            self._strike(step)

    def _reached(self, step: str) -> bool:
        if not self.armed or self._aim is None or step != self._aim.step:
            return False
        with self._lock:
            self._counts[step] += 1
            return self._counts[step] == self._aim.nth

    def _strike(self, step: str) -> None:
        assert self._aim is not None
        if self._aim.kill:
            self._switch.kill()
        self._switch.cut(step)

    def _strike_soon(self, step: str) -> None:
        """While the step runs, or a moment before it does."""
        assert self._aim is not None
        if self._aim.kill:
            self._switch.kill()
        self._switch.cut_soon(step, self._aim.delay_us / 1e6)


class UnsyncedDisk(AimedDisk):
    """Breaks its promise: says that files are durable and does nothing for it."""

    def sync(self, fd: int) -> None:
        """Nothing is synced."""

    def sync_filesystem(self, fd: int) -> None:
        """Nothing is synced."""


class UnsyncedDirectoryDisk(AimedDisk):
    """Breaks its promise: says that names are durable and does nothing for it."""

    def sync_directory(self, directory: Path) -> None:
        """Nothing is synced."""


DISKS: Final[dict[str, type[AimedDisk]]] = {
    "true": AimedDisk,
    "unsynced": UnsyncedDisk,
    "unsynced_directory": UnsyncedDirectoryDisk,
}
