"""A server of somebody else's in a process of its own: started, waited for, ended by its id."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

START_SECONDS: Final = 60
POLL_SECONDS: Final = 0.05
BIN: Final = Path(sys.executable).parent


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody has now; taken together, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Running:
    """The process, for the time of its context; its output is in `log`."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        log: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._environ = {**os.environ, **(environ or {})}
        self._directory = directory
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                stdout=output,
                stderr=output,
                env=self._environ,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        # An orderly end takes some of them seconds, and nothing of theirs is needed any more.
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return when `ready` says so; an OSError from it counts as not yet."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if ready():
                    return
            except OSError:
                pass
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{self._command[0]} did not start:\n{self._log.read_text()[-2000:]}")
