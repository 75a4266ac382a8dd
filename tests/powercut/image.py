"""An ext4 file system in a file, and its power switch.

The loop device belongs to the mount, so it is let go when the mount is, at the latest with the
namespace. Unmounting is never lazy: a lazily unmounted file system lives on in memory, and what a
cut should have destroyed would still be there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.powercut.namespace import search_path

SIZE_BYTES: Final = 256 << 20
BUSY_SECONDS: Final = 20

_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH: Final = struct.pack("I", 2)


def cut_power(directory: Path) -> None:
    """Every byte that is not synced is gone, and nothing can be synced any more."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
    finally:
        os.close(fd)


class Image:
    """One file system, below a directory that outlives it."""

    def __init__(self, directory: Path, size_bytes: int = SIZE_BYTES) -> None:
        self._file = directory / "image"
        self._size_bytes = size_bytes
        self.mounted = directory / "mounted"

    def make(self) -> None:
        """A new, empty file system in place of the last one."""
        self._file.unlink(missing_ok=True)
        self.mounted.mkdir(exist_ok=True)
        _run("truncate", "-s", str(self._size_bytes), str(self._file))
        _run("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", str(self._file))

    def mount(self, options: str = "") -> None:
        """Replays the journal, as a machine does when it starts."""
        chosen = ",".join(filter(None, ["loop", options]))
        _run("mount", "-t", "ext4", "-o", chosen, str(self._file), str(self.mounted))

    def unmount(self) -> None:
        """Waits for the last open file: a killed process's children end a moment after it."""
        end = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                _run("umount", str(self.mounted))
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)
            else:
                return


def _run(*command: str) -> None:
    """Raises OSError with what the tool said."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PATH": search_path()}
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        code = errno.EBUSY if "busy" in said else errno.EIO
        raise OSError(code, f"{command[0]}: {said}")
