"""Reads the sizes of messages that are not in memory: those from before the stream was opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import numpy as np
import structlog

from penstock.host.tasks import Tasks
from penstock.model.batch import AtHead, Gone
from penstock.model.run import ColumnRun
from penstock.streams.shared_scan import SharedScan
from penstock.streams.sizes import Int64s, Measured
from penstock.streams.stream_counts import StreamCounts
from penstock.topics import OpenPartition

READ_BYTES: Final = 1 << 20

_events = structlog.get_logger(__name__)


class SizeMeasuring:
    """Measures the older messages of one partition, once, when their sizes are needed."""

    def __init__(
        self,
        partition: OpenPartition,
        counts: StreamCounts,
        scan: SharedScan,
        on_measured: Callable[[], None],
    ) -> None:
        """`on_measured` is called when the counts include the older messages."""
        self._partition, self._counts, self._scan = partition, counts, scan
        self._on_measured = on_measured
        self._tasks = Tasks()
        self._measuring: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to measure older messages; an error is logged."""
        if self._counts.unmeasured:
            self._measure().add_done_callback(_log_error)

    async def measured(self) -> None:
        """Wait until the counts include the older messages."""
        while self._counts.unmeasured:
            await asyncio.shield(self._measure())

    async def read(self, first: int, stop: int) -> Measured:
        """The size of each message in a range."""
        found: list[tuple[Int64s, Int64s]] = []
        offset = first
        while offset < stop:
            answer = await self._scan.read(offset, READ_BYTES)
            if isinstance(answer, Gone):
                offset = answer.earliest
                continue
            if isinstance(answer, AtHead):
                break
            for batch in answer:
                run = ColumnRun(batch.content, batch.partition)
                sizes, _ = self._counts.counting.count(run)
                offsets = batch.offsets()
                in_range = (offsets >= offset) & (offsets < stop)
                sizes = np.broadcast_to(sizes, len(offsets))
                found.append((offsets[in_range], sizes[in_range]))
            offset = answer[-1].next_offset
        empty = np.empty(0, np.int64)
        columns = zip((empty, empty), *found, strict=True)
        return Measured(*map(np.concatenate, columns))

    def _measure(self) -> asyncio.Task[None]:
        """The task that measures older messages; all callers share it."""
        if self._measuring is None or self._measuring.done():
            self._measuring = self._tasks.start(self._measure_older())
        return self._measuring

    async def _measure_older(self) -> None:
        base = self._counts.sizes.base
        measured = await self.read(self._partition.start_offset, base)
        self._counts.add_measured(base, measured)
        self._on_measured()


def _log_error(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _events.warning("stream_not_measured", reason=str(error))
