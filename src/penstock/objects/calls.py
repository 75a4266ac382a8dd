"""Calls of opendal: with time-outs, retries, a deadline, and errors that say what they mean.

opendal retries single requests and has a time-out for each. A reply that drips keeps every read
within its time-out for ever, so that a call as a whole has a deadline here.

A thread of opendal that waits for the interpreter while that ends takes the process down with it
(measured: 14 of 60 short programs). So a process that made calls rests before it exits until the
last one is a moment ago; sleeping lets such a thread get its turn.
"""

from __future__ import annotations

import asyncio
import atexit
import time
from collections.abc import Awaitable
from typing import Any, Final, NamedTuple, TypeVar

from opendal import AsyncOperator, exceptions
from opendal.layers import RetryLayer, TimeoutLayer

from penstock.objects.failures import Failure, Meaning, meaning, reason

DRAIN_SECONDS: Final = 5.0
"""How long `close` lets calls in hand run before it cancels them."""

REST_SECONDS: Final = 0.2
"""Quiet time before the process exits."""

_ERRORS: Final[tuple[type[Exception], ...]] = (
    *(kind for kind in vars(exceptions).values() if isinstance(kind, type)),
    OSError,
)
"""A writer's errors are OSError, with the same text as the others."""

_T = TypeVar("_T")


class CallLimits(NamedTuple):
    """How long and how often a store is asked."""

    request_seconds: float = 30.0
    """One request, from its first byte to the reply; for large bodies a chunk of them."""
    retries_max: int = 5
    retry_seconds_min: float = 0.2
    """Before the first retry; doubles from one to the next, plus jitter."""
    retry_seconds_max: float = 10.0
    call_seconds: float = 120.0
    """A step of a call with all its retries: one object or part of it, one page of a listing."""


class Calls:
    """An operator and the calls that are made of it."""

    _ended_seconds = 0.0
    """When the last call of any store in this process ended."""

    def __init__(self, operator: AsyncOperator, limits: CallLimits) -> None:
        self.operator = _layered(operator, limits)
        self._seconds = limits.call_seconds
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def run(self, call: Awaitable[_T]) -> _T:
        """The result of a call; raises Failure, also when it takes too long."""
        future = asyncio.ensure_future(call)
        if self._closed:
            future.cancel()
            raise Failure(Meaning.REFUSED, "the store is closed")
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout(self._seconds):
                return await future
        except TimeoutError:
            raise Failure(Meaning.AWAY, f"not done within {self._seconds:g} seconds") from None
        except _ERRORS as error:
            raise Failure(meaning(str(error)), reason(str(error))) from None
        finally:
            Calls._ended_seconds = time.monotonic()

    async def close(self) -> None:
        """Let calls in hand finish for a while, then cancel them; no more are made."""
        self._closed = True
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=DRAIN_SECONDS)
            for call in late:
                call.cancel()

    @classmethod
    def rest_before_exit(cls) -> None:
        """Sleep until the last call is REST_SECONDS ago."""
        time.sleep(max(0.0, cls._ended_seconds + REST_SECONDS - time.monotonic()))


atexit.register(Calls.rest_before_exit)


def _layered(operator: AsyncOperator, limits: CallLimits) -> AsyncOperator:
    seconds = limits.request_seconds
    operator = operator.layer(TimeoutLayer(timeout=seconds, io_timeout=seconds))
    if limits.retries_max == 0:
        return operator
    return operator.layer(
        RetryLayer(
            max_times=limits.retries_max,
            factor=2.0,
            jitter=True,
            min_delay=limits.retry_seconds_min,
            max_delay=limits.retry_seconds_max,
        )
    )
