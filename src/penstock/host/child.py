"""A child process for Python code that runs per row and would block the event loop in a thread.

Calls and results are pickles over two pipes, each after its length. The child runs one call at a
time. The first call starts it; it inherits no sockets. It ends with the parent, when its pipe is
closed; on Linux the kernel kills it, too. If the process dies, its call fails and the next call
starts a new process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import struct
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, cast

from penstock.host.tasks import Tasks
from penstock.model.errors import PenstockError

STOP_SECONDS: Final = 5.0
"""Time that `close` gives the running call before it kills the process."""

_LENGTH: Final = struct.Struct("<Q")
_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from penstock.host.child import main;"
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
_PR_SET_PDEATHSIG: Final = 1

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ChildFailed(PenstockError):
    """The child process ended before it replied; the call may or may not have been executed."""

    code = "child_failed"

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"the child process did not finish {call}: {reason}")
        self.call, self.reason = call, reason


class Child:
    """A child process; create and close it within a running event loop."""

    def __init__(self, niceness: int = 5) -> None:
        """A higher niceness leaves more processor time to other processes."""
        self._niceness = niceness
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._exchanges = Tasks()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function of a module in the child; returns its result or raises its exception.

        Calls run in order. Cancelling the wait does not stop the call. Raises ChildFailed if the
        process ends before it replies, or this child is closed.
        """
        request = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        exchange = self._exchanges.start(self._exchange(function.__qualname__, request))
        exchange.add_done_callback(_retrieve_exception)
        answer, error, trace = await asyncio.shield(exchange)
        if error is not None:
            error.add_note(trace)
            raise error
        return cast(_T, answer)

    async def close(self) -> None:
        """End the process, after the running call if that is short; queued calls fail."""
        self._closed = True
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
        if self._exchanges:
            _, running = await asyncio.wait(tuple(self._exchanges), timeout=STOP_SECONDS)
            if running and self._process is not None:
                self._process.kill()
                await asyncio.wait(running)
        if self._process is not None:
            await self._end(self._process)

    async def _exchange(self, name: str, request: bytes) -> tuple[Any, Exception | None, str]:
        async with self._turn:
            if self._closed:
                raise ChildFailed(name, "it is closed")
            process = self._process = self._process or await _start(self._niceness)
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(_LENGTH.pack(len(request)) + request)
                await process.stdin.drain()
                (size,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
                reply = await process.stdout.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                status = await self._end(process)
                raise ChildFailed(name, f"it ended with status {status}") from error
            # Both ends are this program, and no other process has the pipe.
            return cast("tuple[Any, Exception | None, str]", pickle.loads(reply))  # noqa: S301

    async def _end(self, process: Process) -> int:
        """Close the pipes and wait for the process, killing it if necessary; returns its status."""
        assert process.stdin is not None
        assert process.stdout is not None
        if self._process is process:
            self._process = None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.stdout.read(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
        return await process.wait()


def _retrieve_exception(exchange: asyncio.Task[Any]) -> None:
    # A cancelled caller does not retrieve the exception.
    if not exchange.cancelled():
        exchange.exception()


async def _start(niceness: int) -> Process:
    command = (sys.executable, "-c", _BOOT, str(os.getpid()), str(niceness), *sys.path)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)


def main(parent: int, niceness: int) -> None:
    """Main loop of the child: execute calls until the pipe is closed."""
    # A process group may receive both signals; the parent may still need the child to drain.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent ended before the kernel knew to kill this process. Its calls are in the pipe,
        # but another broker may use the same files by now.
        return
    os.nice(niceness)
    requests, replies = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    # Text that a function prints must not get between the replies.
    os.dup2(2, 1)
    while len(lead := requests.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(lead)
        reply = _answer(requests.read(size))
        replies.write(_LENGTH.pack(len(reply)) + reply)
        replies.flush()


def _answer(request: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(request)  # noqa: S301
        return pickle.dumps((function(*args, **kwargs), None, ""), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        return pickle.dumps((None, _portable(error), trace))


def _portable(error: Exception) -> Exception:
    """The error itself if it can be pickled; errors with own constructors may not."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        return PenstockError(f"{type(error).__name__}: {error}")
    return error
