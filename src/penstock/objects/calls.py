"""Calls of opendal, with timeouts, retries, a deadline and errors by meaning.

opendal retries requests and has a timeout for each. A reply that arrives in a trickle keeps every
read within its timeout, so that each call has a deadline here, too.

opendal has a class for each kind of error, but `Unexpected` stands for refusals as well as for
outages, and it does not say whether the last of its retries was worth it. `meaning` tells them
apart by the HTTP status in the text of the error; `reason` keeps one line of that text.

A thread of opendal that waits for the interpreter while that ends crashes the process (14 of 60
short programs in a measurement). So a process that made calls sleeps before its exit until a moment
after the last call, which lets such a thread finish.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import time
from collections.abc import Awaitable
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeVar

from opendal import AsyncOperator, exceptions
from opendal.layers import RetryLayer, TimeoutLayer

from penstock.objects.interface import ObjectMissing, ObjectStoreError, StoreUnavailable

DRAIN_SECONDS: Final = 5.0
"""Time that `close` gives running calls before it cancels them."""

EXIT_DELAY_SECONDS: Final = 0.2
"""Time without calls before the process exits."""

_ERRORS: Final[tuple[type[Exception], ...]] = (
    *(kind for kind in vars(exceptions).values() if isinstance(kind, type)),
    OSError,
)
"""Errors of calls. Those of a writer are OSErrors with the text of an opendal error."""

_T = TypeVar("_T")


class CallLimits(NamedTuple):
    """Timeouts and retries of calls to a store."""

    request_seconds: float = 30.0
    """Timeout of one request with its reply, or of a chunk of a large body."""
    retries_max: int = 5
    retry_seconds_min: float = 0.2
    """Delay before the first retry; it doubles with each retry, with jitter."""
    retry_seconds_max: float = 10.0
    call_seconds: float = 120.0
    """Timeout of one object, part or page of a listing, with all retries."""


class StoreCalls:
    """The calls of one opendal operator."""

    _ended_seconds = 0.0
    """Time at which the last call of any store in this process ended."""

    def __init__(self, operator: AsyncOperator, limits: CallLimits) -> None:
        self.operator = _layered(operator, limits)
        self._seconds = limits.call_seconds
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def run(self, call: Awaitable[_T]) -> _T:
        """The result of a call; raises Failure if it fails or takes too long."""
        # opendal returns a future, which starts on its own and is no task.
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
            StoreCalls._ended_seconds = time.monotonic()

    async def close(self) -> None:
        """Refuse new calls; give running calls some time, then cancel them."""
        self._closed = True
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=DRAIN_SECONDS)
            for call in late:
                call.cancel()

    @classmethod
    def sleep_before_exit(cls) -> None:
        """Sleep until the last call is EXIT_DELAY_SECONDS ago."""
        time.sleep(max(0.0, cls._ended_seconds + EXIT_DELAY_SECONDS - time.monotonic()))


atexit.register(StoreCalls.sleep_before_exit)


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


REASON_CHARS_MAX: Final = 200

_STATUS: Final = re.compile(r"\bstatus: ([0-9]{3})\b")
_CODE: Final = re.compile(r'\b(?:code|reason): "([A-Za-z0-9]+)"')
"""The error code of S3 and Azure, or that of GCS."""
_SOURCE: Final = re.compile(r"^Source:\n\s+(.+)$", re.MULTILINE)
_SHORT: Final = re.compile("too little data|content range is invalid")
_NO_STORE: Final = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_NO_GCS_BUCKET: Final = re.compile(
    r'NotFound [^"]* message: "(?:The specified bucket|\{[^B/]*Bucket [-_.a-z0-9]+)'
    r" does not exist\."
)
"""Tells a missing bucket of GCS, which has the error code of a missing object.

Google's testbench wraps another message in its reply.
"""
_DAMAGED_ON_THE_WAY: Final = {
    "BadDigest",
    "Crc64Mismatch",
    "IncompleteBody",
    "InvalidDigest",
    "InvalidPart",
    "MalformedXML",
    "Md5Mismatch",
}
_BUSY: Final = {"408", "429"}
_GONE: Final = "410"
"""GCS has dropped an upload in parts before its end; a new upload may succeed."""


class Meaning(Enum):
    """What an error means for the caller."""

    MISSING = auto()
    """The object does not exist."""
    TAKEN = auto()
    """The name is taken, perhaps by a write of ours whose reply was lost."""
    DAMAGED = auto()
    """The store noticed that the bytes were damaged on their way; send them again."""
    SHORT = auto()
    """The object is shorter than the requested range."""
    REFUSED = auto()
    """The store refused the request; a retry is of no use."""
    AWAY = auto()
    """The store is not available; a retry may succeed."""


def meaning(text: str) -> Meaning:
    """The meaning of an opendal error with this text; the first word of it is its kind."""
    kind, code, status = text.partition(" ")[0], _CODE.search(text), _STATUS.search(text)
    if kind == "NotFound":
        no_store = (code and code[1] in _NO_STORE) or _NO_GCS_BUCKET.match(text)
        return Meaning.REFUSED if no_store else Meaning.MISSING
    if kind in ("ConditionNotMatch", "AlreadyExists", "Conflict"):
        return Meaning.TAKEN
    if kind == "RangeNotSatisfied" or _SHORT.search(text):
        return Meaning.SHORT
    if (code and code[1] in _DAMAGED_ON_THE_WAY) or (status and status[1] == _GONE):
        return Meaning.DAMAGED
    if kind in ("Unexpected", "RateLimited"):
        refused = status and status[1].startswith("4") and status[1] not in _BUSY
        return Meaning.REFUSED if refused else Meaning.AWAY
    return Meaning.REFUSED


def reason(text: str) -> str:
    """One line of an error's text: what failed, the store's code or status, and the cause."""
    first = text.partition("\n")[0]
    what = first.partition("=> ")[2].partition(" {")[0] or first
    status, code, source = (pattern.search(text) for pattern in (_STATUS, _CODE, _SOURCE))
    facts = [match[1] for match in (status, code, source) if match]
    return ": ".join(dict.fromkeys([what, *facts]))[:REASON_CHARS_MAX]


class Failure(Exception):
    """A call of opendal failed; has its meaning, and the reason in one line."""

    def __init__(self, meaning: Meaning, reason: str) -> None:
        super().__init__(reason)
        self.meaning, self.reason = meaning, reason

    def about(self, key: str) -> ObjectStoreError:
        """The error of the store interface for this failure and key."""
        if self.meaning is Meaning.MISSING:
            return ObjectMissing(key)
        if self.meaning is Meaning.AWAY:
            return StoreUnavailable(key, self.reason)
        return ObjectStoreError(key, self.reason)
