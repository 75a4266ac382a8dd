"""Locks the data directory, which only one process at a time may use.

The lock is the kernel's and ends with the process, so that a file left by a crash is harmless. The
file contains the process id for the error message of a second process.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.model.errors import StartRefused

LOCK_FILE: Final = "LOCK"
PID_CHARACTERS: Final = 20


@contextlib.contextmanager
def locked(directory: str, flag: str = "--data") -> Iterator[None]:
    """Lock the directory within the block, creating it if necessary; raises StartRefused.

    `flag` is the command-line flag that selects a directory, for the error message.
    """
    with contextlib.closing(_LockFile(directory, flag)) as file:
        file.take()
        yield


class _LockFile:
    def __init__(self, directory: str, flag: str) -> None:
        self._directory, self._flag = directory, flag
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            # O_NOFOLLOW: the file that a symbolic link points to must not be written.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor = os.open(Path(directory, LOCK_FILE), flags, 0o644)
        except OSError as error:
            raise self._refused(error) from None

    def take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A fixed length, overwritten in place: a restart on a full disk needs no new block.
            os.pwrite(self._descriptor, b"%-*d\n" % (PID_CHARACTERS, os.getpid()), 0)
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        os.close(self._descriptor)

    def _refused(self, error: OSError) -> StartRefused:
        if isinstance(error, BlockingIOError):
            holder = (
                os.pread(self._descriptor, PID_CHARACTERS, 0).decode("ascii", "replace").strip()
            )
            return StartRefused(
                f"data directory {self._directory} is in use by process {holder or 'unknown'}; "
                f"stop it or choose another with {self._flag}"
            )
        reason = (error.strerror or str(error)).lower()
        return StartRefused(
            f"cannot use data directory {self._directory} ({reason}); "
            f"choose another with {self._flag}"
        )
