"""A little disk space kept back, so that deletions can be written when the disk is full."""

from __future__ import annotations

from pathlib import Path

from penstock.host.disk import Disk


class Reserve:
    """A file of `size_bytes` that is given up on a full disk and taken back when there is room."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = directory / "reserve"
        self._size_bytes = size_bytes

    def release(self) -> bool:
        """Give the space up; whether there was any."""
        held = self._path.exists()
        self._disk.remove(self._path)
        return held

    def restore(self) -> bool:
        """Take the space back unless that would fill the disk again; whether it is held now."""
        if self._path.exists():
            return True
        try:
            if self._disk.free_bytes(self._directory) < 4 * self._size_bytes:
                return False
            self._disk.allocate(self._path, self._size_bytes)
        except OSError:
            return False
        return True
