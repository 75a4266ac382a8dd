"""A real `penstock serve`, in a process of its own, on free ports."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

PENSTOCK: Final = str(Path(sys.executable).with_name("penstock"))
WAIT_SECONDS: Final = 30
FREE_PORT: Final = (
    *("--http", "127.0.0.1:0"),
    *("--grpc", "127.0.0.1:0"),
    *("--nats", "127.0.0.1:0"),
)


class Answer(NamedTuple):
    """What the broker answered to one request."""

    status: int
    body: Any


class Broker:
    """A broker that is ready; leaving the context kills it if it still runs."""

    def __init__(
        self,
        *arguments: str,
        command: Sequence[str] = (PENSTOCK, "serve"),
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        # Appending, because reading it here moves the position that the process writes at.
        self._errors = tempfile.TemporaryFile("a+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=clean_environment(environ),
            cwd=cwd,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.nats_urls: list[str] = []
        while line.startswith("nats listening on "):
            self.nats_urls.append(line.split()[-1])
            line = self.process.stdout.readline()
        match = re.fullmatch(r"http listening on http://(.+):([0-9]+)\n", line)
        if match is None:
            self.process.wait(WAIT_SECONDS)
            errors = self.errors()
            self.close()
            raise AssertionError(f"the broker did not start: {line}{errors}")
        self.host, self.port = match[1].strip("[]"), int(match[2])
        self.http_urls = [line.split()[-1]]
        self._grpc: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def nats_url(self) -> str:
        return self.nats_urls[0] if self.nats_urls else ""

    @property
    def grpc(self) -> str:
        """HOST:PORT of the first gRPC address."""
        return self.grpc_addresses(1)[0]

    def grpc_addresses(self, count: int) -> list[str]:
        """The first so many gRPC addresses; HTTP addresses that are read before are remembered."""
        assert self.process.stdout is not None
        while len(self._grpc) < count:
            line = self.process.stdout.readline()
            match = re.fullmatch(r"(http|grpc) listening on (.+)\n", line)
            assert match is not None, line
            (self.http_urls if match[1] == "http" else self._grpc).append(match[2])
        return self._grpc[:count]

    def get(self, path: str, method: str = "GET") -> Answer:
        status, body = self._exchange(method, path)
        return Answer(status, json.loads(body or b"null"))

    def post(self, path: str, body: object) -> Answer:
        status, answer = self._exchange("POST", path, json.dumps(body))
        return Answer(status, json.loads(answer or b"null"))

    def figure(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self._exchange("GET", "/metrics")[1].decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line)
        )

    def _exchange(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2 * WAIT_SECONDS)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once the process has ended."""
        return self.process.wait(WAIT_SECONDS)

    def errors(self) -> str:
        """What it wrote to standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._errors.close()


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what Penstock or make would obey, plus `extra`."""
    obeyed = ("PENSTOCK", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(obeyed)}
    return kept | dict(extra or {})


def refused(*arguments: str, environ: Mapping[str, str] | None = None, cwd: Path) -> str:
    """The one line that `penstock serve` ends with when it does not start."""
    done = subprocess.run(
        [PENSTOCK, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        env=clean_environment(environ),
        cwd=cwd,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("error: ").removesuffix("\n")
