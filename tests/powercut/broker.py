"""The child process as its parent sees it."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tests.powercut.facts import Fact, Listener
from tests.powercut.orders import Orders

ROOT: Final = Path(__file__).parent.parent.parent
STOP_SECONDS: Final = 60
_READ_BYTES: Final = 1 << 20
_LAST_WORDS_BYTES: Final = 6000


class Broker:
    """A process that waits for its orders, then tells facts until it ends."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._facts, theirs = os.pipe()
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _READ_BYTES)
        self._listener = Listener()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.powercut.child", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=self._words,
            stderr=self._words,
            pass_fds=(theirs,),
            cwd=ROOT,
        )
        os.close(theirs)
        self.silent = False
        """Whether everything it ever told has been received."""

    def start(self, orders: Orders) -> None:
        self._say(msgspec.json.encode(orders))

    def cut(self) -> None:
        """Have it cut its power; it tells when it has."""
        self._say(b"cut")

    def receive(self, wait_seconds: float) -> list[Fact]:
        """What it has told by now; waits for the first word, and not at all once it is silent."""
        if self.silent or not select.select([self._facts], [], [], max(wait_seconds, 0))[0]:
            return []
        data = os.read(self._facts, _READ_BYTES)
        self.silent = not data
        return self._listener.receive(data)

    def stop(self) -> None:
        """Ask for an orderly end; it goes on telling until then."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """How it ended; kills what does not end by itself."""
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def status(self) -> str:
        """How it ended, for people; kills it if it has not."""
        self._process.kill()
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"status {code}"

    def words(self) -> str:
        """The end of what it logged or complained about."""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - _LAST_WORDS_BYTES))
        return self._words.read().decode(errors="replace")

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # It may have ended by itself, which its silence tells.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process, if need be by force, and let go of everything; may be called again."""
        if self._words.closed:
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._facts)
        self._words.close()
