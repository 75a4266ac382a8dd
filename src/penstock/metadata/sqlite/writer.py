"""Group commit: requests that arrive during a commit are carried out together in the next one.

One thread owns the store. Each caller gets its own result after the commit that contains it; a
request that fails does not affect the others. If a commit fails, all requests of its group raise
MetadataUnavailable, as their outcome is unknown. The queue is bounded: requests are refused at once
while it is full.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from penstock.host.threads import WorkerThreads
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.sqlite.store import Committed, SqliteStore
from penstock.model.errors import PenstockError


class QueueLimits(NamedTuple):
    """Limits of the requests that wait for the thread."""

    queue_requests_max: int = 10_000
    queue_bytes_max: int = 64 << 20
    group_requests_max: int = 1000
    """A larger group would delay its first requests for too long."""


LIMITS: Final = QueueLimits()

_T = TypeVar("_T")


class _Request(NamedTuple):
    call: Callable[[SqliteStore], Any]
    size_bytes: int
    future: asyncio.Future[Any]


class _Answer(NamedTuple):
    request: _Request
    result: Any
    error: Exception | None


class GroupResult(NamedTuple):
    """The results of a group; `committed` is None if its commit failed."""

    answers: list[_Answer]
    committed: Committed | None
    earliest_end_ns: int | None


class GroupWriter:
    """The queue of the writing thread; everything but `_commit` runs on the event loop."""

    def __init__(
        self,
        store: SqliteStore,
        on_group: Callable[[GroupResult], None],
        limits: QueueLimits = LIMITS,
    ) -> None:
        """`on_group` is called on the event loop with the results of each group."""
        self._store = store
        self._on_group, self._limits = on_group, limits
        self._workers = WorkerThreads(1, "metadata-write")
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._waiting: deque[_Request] = deque()
        self._scheduled = False
        self._requests = self._bytes = 0
        self._closed = False
        self.requests_total = 0
        self.groups_total = 0
        """Groups that changed a key; each needs one fsync."""

    @property
    def full(self) -> bool:
        """Whether the next request is refused, whatever its size."""
        return self._requests >= self._limits.queue_requests_max

    def submit(self, call: Callable[[SqliteStore], _T], size_bytes: int = 0) -> asyncio.Future[_T]:
        """The result of `call`, once it is durable; raises MetadataUnavailable."""
        if self._closed:
            raise MetadataUnavailable("the metadata store is closed")
        limits = self._limits
        if self.full or self._bytes + size_bytes > limits.queue_bytes_max:
            raise MetadataUnavailable(
                f"{self._requests} requests of {self._bytes} bytes wait for the metadata store; "
                f"the limits are queue_requests_max {limits.queue_requests_max} and "
                f"queue_bytes_max {limits.queue_bytes_max}"
            )
        future: asyncio.Future[_T] = self._loop.create_future()
        self._requests += 1
        self._bytes += size_bytes
        self.requests_total += 1
        with self._lock:
            self._waiting.append(_Request(call, size_bytes, future))
            idle, self._scheduled = not self._scheduled, True
        if idle:
            self._workers.submit(self._commit)
        return future

    def call(self, call: Callable[[SqliteStore], _T]) -> Future[_T]:
        """The result of a call that changes no table, run between two groups; thread-safe."""
        answer: Future[_T] = Future()

        def work() -> None:
            try:
                answer.set_result(call(self._store))
            except Exception as error:
                answer.set_exception(error)

        try:
            self._workers.submit(work)
        except RuntimeError:
            raise MetadataUnavailable("the metadata store is closed") from None
        return answer

    async def close(self) -> None:
        """Carry out the queued requests, then close the store."""
        if not self._closed:
            self._closed = True
            await self._workers.run(self._drain)
            await self._workers.close()

    def _commit(self) -> None:
        """Commit one group in the thread, and schedule the next."""
        self._commit_group()
        with self._lock:
            more = self._scheduled = bool(self._waiting)
        if more:
            self._workers.submit(self._commit)

    def _commit_group(self) -> bool:
        with self._lock:
            count = min(len(self._waiting), self._limits.group_requests_max)
            requests = [self._waiting.popleft() for _ in range(count)]
        if requests:
            self._workers.report(self._answer, carry_out(self._store, requests))
        return bool(requests)

    def _drain(self) -> None:
        while self._commit_group():
            pass
        self._store.close()

    def _answer(self, group: GroupResult) -> None:
        for request, result, error in group.answers:
            self._requests -= 1
            self._bytes -= request.size_bytes
            if request.future.done():
                continue
            if error is None:
                request.future.set_result(result)
            else:
                request.future.set_exception(error)
        if group.committed is not None and group.committed.keys:
            self.groups_total += 1
        self._on_group(group)


def carry_out(store: SqliteStore, requests: list[_Request]) -> GroupResult:
    """Carry out the requests and commit them together; never raises."""
    answers: list[_Answer] = []
    try:
        store.begin()
        for request in requests:
            try:
                answers.append(_Answer(request, request.call(store), None))
            except PenstockError as error:
                answers.append(_Answer(request, None, error))
        committed = store.commit()
    except Exception as error:
        return _fail_group(store, requests, error)
    return GroupResult(answers, committed, store.earliest_end_ns())


def _fail_group(store: SqliteStore, requests: list[_Request], cause: Exception) -> GroupResult:
    try:
        store.abandon()
    except Exception as error:
        cause.add_note(f"and it could not be undone: {error}")
    answers = []
    for request in requests:
        unavailable = MetadataUnavailable(f"the metadata store could not commit: {cause}")
        unavailable.__cause__ = cause
        answers.append(_Answer(request, None, unavailable))
    return GroupResult(answers, None, store.earliest_end_ns())
