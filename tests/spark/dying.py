"""The command line, killed by SIGKILL at a step of a job, without any cleanup.

python -m tests.spark.dying STEP ARGUMENT...
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from penstock.cli import main
from penstock.spark.pipelines import compact

DRIVER: Final = "DYING_DRIVER"
"""Environment variable with the process that workers kill; see dying_daemon.py."""
WORKERS: Final = "spark.python.daemon.module=tests.spark.dying_daemon"

_made, _answer = compact._new_objects, http.client.HTTPConnection.getresponse
_requested = http.client.HTTPConnection.putrequest


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def after_some_objects(*arguments: Any) -> Iterator[Any]:
    """Die after the first result of a task, before any request to the broker."""
    next(_made(*arguments))
    die()


def after_all_objects(*arguments: Any) -> Iterator[Any]:
    list(_made(*arguments))
    die()


def around_the_answer(path: str, told: bool) -> Callable[..., Any]:
    """Die after sending a request to this path, or after receiving its reply."""

    def getresponse(connection: http.client.HTTPConnection) -> Any:
        if not connection.path.endswith(path):  # type: ignore[attr-defined]
            return _answer(connection)
        if told:
            _answer(connection).read()
        die()

    def putrequest(
        connection: http.client.HTTPConnection, method: str, url: str, *more: Any, **most: Any
    ) -> None:
        connection.path = url  # type: ignore[attr-defined]
        _requested(connection, method, url, *more, **most)

    http.client.HTTPConnection.putrequest = putrequest  # type: ignore[method-assign, assignment]
    return getresponse


def half_an_object() -> None:
    """Let the workers die while they write an object."""
    os.environ[DRIVER] = str(os.getpid())
    sys.argv += ["--conf", WORKERS]


def answers(path: str, told: bool) -> None:
    http.client.HTTPConnection.getresponse = around_the_answer(path, told)  # type: ignore[method-assign]


STEPS: Final[dict[str, Callable[[], object]]] = {
    "half an object": half_an_object,
    "some objects": lambda: setattr(compact, "_new_objects", after_some_objects),
    "all objects": lambda: setattr(compact, "_new_objects", after_all_objects),
    "asked": lambda: answers("/compactions", told=False),
    "answered": lambda: answers("/compactions", told=True),
    "sweeping": lambda: answers("/sweeps", told=False),
}

if __name__ == "__main__":
    STEPS[sys.argv.pop(1)]()
    main()
