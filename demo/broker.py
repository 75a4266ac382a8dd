"""The broker of the tour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PENSTOCK: Final = str(Path(sys.executable).with_name("penstock"))
PROTOCOLS: Final = ("nats", "http", "grpc")
STOP_SECONDS: Final = 30


class DemoBroker:
    """`penstock serve` in a process of its own; leaving the context stops it."""

    def __init__(self, directory: Path) -> None:
        flags = [flag for server in PROTOCOLS for flag in (f"--{server}", "127.0.0.1:0")]
        quick = ("--set", "storage.uploader.interval_seconds=1", "--set", "log.level=error")
        self._process = subprocess.Popen(
            [PENSTOCK, "serve", "--data", str(directory), *flags, *quick],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.data = directory
        self.addresses: dict[str, str] = {}
        for _ in PROTOCOLS:
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit("the broker did not start; see its error above")
            print(line, end="")
            self.addresses[line.split()[0]] = line.split()[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(STOP_SECONDS)

    def command(self, *arguments: str) -> str:
        """Run a `penstock` command against the broker, and print the command and its output."""
        print("$ penstock", " ".join(map(_quoted, arguments)), flush=True)
        done = subprocess.run(
            [PENSTOCK, *arguments],
            env={**os.environ, "PENSTOCK_URL": self.addresses["http"]},
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout + done.stderr, end="", flush=True)
        if done.returncode:
            raise SystemExit(f"the command failed (exit code {done.returncode})")
        return done.stdout


def _quoted(argument: str) -> str:
    return f"'{argument}'" if " " in argument or '"' in argument else argument
