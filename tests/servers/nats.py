"""The real nats-server from PyPI, with JetStream, on a free port of the loopback."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers.running import BIN, POLL_SECONDS, START_SECONDS

LISTENING: Final = re.compile(r"Listening for client connections on (\S+):([0-9]+)")
MONITORING: Final = re.compile(r"Starting http monitor on \S+:([0-9]+)")
READY: Final = "Server is ready"
STOP_SECONDS: Final = 10
OURS: Final = "penstock-nats-server"
THEIRS: Final = "nats-server"


class NatsServer:
    """One process of `program`, which takes nats-server's flags; `close` kills it by its id.

    What it stored survives `stop`, `kill` and `start`.
    """

    def __init__(
        self, directory: Path, program: str = THEIRS, options: Sequence[str] = ("--jetstream",)
    ) -> None:
        self._command = [
            str(BIN / program),
            *("--addr", "127.0.0.1", "--port", "-1", "--server_name", "nats"),
            *("--store_dir", str(directory / "store"), *options),
        ]
        self._log = directory / "log"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        """Start it, and return once it serves; every start takes a port of its own."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._directory
            )
        deadline = time.monotonic() + START_SECONDS
        while READY not in self.log():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, "it does not say that it is ready"
            time.sleep(POLL_SECONDS)
        self.port = self._told(LISTENING, 2)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor(self) -> int:
        """The port of its HTTP pages, with the option `-m`."""
        return self._told(MONITORING, 1)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """What it wrote since its start."""
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> int:
        """An orderly end; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(STOP_SECONDS)

    def close(self) -> None:
        """As a crash: no warning, nothing saved."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _told(self, line: re.Pattern[str], group: int) -> int:
        found = line.search(self.log())
        assert found is not None, self.log()
        return int(found[group])
