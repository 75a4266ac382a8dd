"""The data directory belongs to one process at a time.

The kernel's lock decides, not the file: it goes with the process, so a file left by a crash is
harmless. The process id in the file is only there to be named to the one who comes second.
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
    """Hold the directory, made if it is missing; raises StartRefused if that cannot be.

    `flag` is what chooses another.
    """
    with contextlib.closing(_LockFile(directory, flag)) as file:
        file.take()
        yield


class _LockFile:
    def __init__(self, directory: str, flag: str) -> None:
        self._directory, self._flag = directory, flag
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(Path(directory, LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._refused(error) from None

    def take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Always the same length, in place: a restart on a full disk needs no new block.
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
