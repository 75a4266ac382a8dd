"""Disks that say where they are, so that they are cut there, and disks that do not sync."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.host.disk import Buffer, Disk
from tests.powercut.aim import Part, Trigger

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

OBJECT_STEPS: Final = (
    "before write",
    "torn write",
    "after write",
    "during sync",
    "after sync",
    "before link",
    "before sync_directory",
    "during sync_directory",
    "after sync_directory",
    "before remove",
    "after remove",
)
"""Steps of a busy bucket; `before link` is between whole bytes and their name."""

OBJECT_RECOVERY_STEPS: Final = ("before remove", "after remove", "during sync_directory")

METADATA_STEPS: Final = ("before transaction", "during transaction", "after transaction")


class AimedDisk(Disk):
    """A true disk that tells a trigger every step."""

    def __init__(self, trigger: Trigger, part: Part = Part.LOG) -> None:
        self._trigger = trigger
        self._part = part

    def write(self, fd: int, pieces: Sequence[Buffer]) -> None:
        self._step("before write")
        if self._trigger.reached(self._part, "torn write"):
            data = b"".join(pieces)
            os.write(fd, data[: int(len(data) * self._trigger.share)])
            # As if the kernel had written back just this much by now.
            os.fdatasync(fd)
            self._trigger.strike("torn write")
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
        self._trigger.begin(self._part, "during create")
        return super().create(path, pieces)

    def link(self, path: Path, new: Path) -> None:
        self._step("before link")
        super().link(path, new)

    def truncate(self, fd: int, size: int) -> None:
        self._step("before truncate")
        super().truncate(fd, size)
        self._step("after truncate")

    def remove(self, path: Path) -> None:
        self._step("before remove")
        super().remove(path)
        self._step("after remove")

    def _while(self, step: str, call: Callable[[], None]) -> None:
        self._trigger.begin(self._part, f"during {step}")
        call()
        self._step(f"after {step}")

    def _step(self, step: str) -> None:
        self._trigger.step(self._part, step)


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
