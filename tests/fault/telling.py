"""A process that tells what it does, a JSON array a line, and is asked by lines, too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.eventually import WAIT_SECONDS

ROOT: Final = Path(__file__).parents[2]
Fact = list[Any]


class TellingProcess:
    """`python -m MODULE ARGUMENT`; leaving the context kills it if it still runs."""

    def __init__(self, module: str, argument: str, errors: Path) -> None:
        self.told: list[Fact] = []
        self._changed = threading.Condition()
        self._errors = errors
        errors.parent.mkdir(parents=True, exist_ok=True)
        with errors.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=ROOT,
            )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """At once; what it told before is in `told`."""
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return once this is so; it may become so with every fact that is told."""
        with self._changed:
            assert self._changed.wait_for(ready, WAIT_SECONDS), self._errors.read_text()[-3000:]

    def wait_for(self, *what: str, since: int = 0) -> Fact:
        """The first fact that begins like this, behind the first `since` ones."""
        self.wait_until(lambda: self.count(*what, since=since) > 0)
        return self.facts(*what, since=since)[0]

    def facts(self, *what: str, since: int = 0) -> list[Fact]:
        """Those that begin like this."""
        return [fact for fact in self.told[since:] if tuple(fact[: len(what)]) == what]

    def count(self, *what: str, since: int = 0) -> int:
        return len(self.facts(*what, since=since))

    def wait_for_more(self, *what: str, count: int = 20) -> None:
        """Return once so many more facts that begin like this were told."""
        since = len(self.told)
        self.wait_until(lambda: self.count(*what, since=since) >= count)

    def stop(self) -> None:
        """An orderly end, which uploads what is left."""
        since = len(self.told)
        self.ask("stop")
        self.wait_for("done", since=since)
        assert self._process.wait(WAIT_SECONDS) == 0

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                with self._changed:
                    self.told.append(json.loads(line))
                    self._changed.notify_all()
