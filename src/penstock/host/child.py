"""One child process for Python that runs per row: in a thread it would take the loop's turns.

Calls travel as pickles over two pipes, each behind its length; the child does one at a time. It is
started by the first call, inherits no socket, and ends when the parent does: its pipe is closed,
and on Linux the kernel kills it. A call whose process ends under it fails; the next call starts a
new one.
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

from penstock.model.errors import PenstockError

STOP_SECONDS: Final = 5.0
"""How long `close` lets the call in hand run before it kills the process."""

_LENGTH: Final = struct.Struct("<Q")
_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from penstock.host.child import main;"
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)
_PR_SET_PDEATHSIG: Final = 1

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ChildFailed(PenstockError):
    """The child process ended before it answered; the call may or may not have been carried out."""

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"the child process did not finish {call}: {reason}")
        self.call, self.reason = call, reason


class Child:
    """The process; make it where an event loop runs, and close it there."""

    def __init__(self, niceness: int = 5) -> None:
        """The higher the niceness, the more it leaves the processors to others."""
        self._niceness = niceness
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._exchanges: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What a module's function returns in the child; its exception is raised here.

        Calls wait for their turn in order. Cancelling the wait does not stop the call. Raises
        ChildFailed when the process ended meanwhile or this child is closed.
        """
        request = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        exchange = asyncio.create_task(self._exchange(function.__qualname__, request))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._over)
        answer, error, trace = await asyncio.shield(exchange)
        if error is not None:
            error.add_note(trace)
            raise error
        return cast(_T, answer)

    async def close(self) -> None:
        """End the process, after the call in hand if that is short; waiting calls fail."""
        self._closed = True
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
        if self._exchanges:
            _, running = await asyncio.wait(set(self._exchanges), timeout=STOP_SECONDS)
            if running and self._process is not None:
                self._process.kill()
                await asyncio.wait(running)
        if self._process is not None:
            await self._end(self._process)

    def _over(self, exchange: asyncio.Task[Any]) -> None:
        self._exchanges.discard(exchange)
        # When its caller was cancelled, nobody else asks how it went.
        if not exchange.cancelled():
            exchange.exception()

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
            # Both ends are this program, over a pipe nobody else holds.
            return cast("tuple[Any, Exception | None, str]", pickle.loads(reply))  # noqa: S301

    async def _end(self, process: Process) -> int:
        """Close the pipes, wait for the end, kill what does not end; the exit status."""
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


async def _start(niceness: int) -> Process:
    command = (sys.executable, "-c", _BOOT, str(os.getpid()), str(niceness), *sys.path)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)


def main(parent: int, niceness: int) -> None:
    """The child's side: answer calls until the pipe ends."""
    # Both may be sent to a whole group of processes; the parent may still need this one to drain.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before that was asked for. What it wanted is in the pipe, but by now another
        # broker may be at work on the same files.
        return
    os.nice(niceness)
    requests, replies = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    # What a function prints must not end up between the replies.
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
    """The error if it survives a pickle, as errors with a constructor of their own may not."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        return PenstockError(f"{type(error).__name__}: {error}")
    return error
