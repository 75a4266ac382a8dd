"""Single messages of a channel, for deliveries and views: read in windows, so that neighbours and
other consumers of the same messages cost no read of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

import numpy as np

from penstock.delivery.channels.messages import JobMessage, message_at
from penstock.model.batch import Batch
from penstock.model.units import ONLY_PARTITION, Offset
from penstock.topics import OpenTopic, Source, TopicPartition

WINDOW_BYTES: Final = 256 << 10
WINDOWS_MAX: Final = 8
WINDOW_SECONDS: Final = 5.0
"""How long they are kept after a read."""


class Window:
    """The last batches that were read of one channel."""

    def __init__(self, opened: OpenTopic, source: Source) -> None:
        self._partition, self._source = opened.partition(ONLY_PARTITION), source
        self._place = TopicPartition(opened.topic, None)
        self._batches: deque[Batch] = deque(maxlen=WINDOWS_MAX)
        self._timer: asyncio.TimerHandle | None = None

    async def message(self, offset: int) -> JobMessage | None:
        """A message; None if it is gone. Raises what reading raises."""
        if not self._lives(offset):
            return None
        found = self._held(offset, self._batches) or self._held(offset, self._tail(offset))
        if found is None:
            answer = await self._source.read(self._place, Offset(offset), WINDOW_BYTES)
            if not isinstance(answer, list):
                return None
            self._batches.extendleft(reversed(answer[:WINDOWS_MAX]))
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(WINDOW_SECONDS, self._forget)
            found = self._held(offset, self._batches)
        if found is None:
            return None
        batch, row = found
        return message_at(batch, row, offset)

    def _forget(self) -> None:
        """What is not read any more takes no memory."""
        self._timer = None
        self._batches.clear()

    def _lives(self, offset: int) -> bool:
        return bool(self._partition.count_live(offset, offset + 1))

    def _tail(self, offset: int) -> Iterable[Batch]:
        """The batch of the tail cache that has this offset: a message just stored costs no read."""
        batch = self._partition.cached_batch(offset)
        return () if batch is None else (batch,)

    def _held(self, offset: int, batches: Iterable[Batch]) -> tuple[Batch, int] | None:
        for batch in batches:
            place = offset - batch.first_offset
            if 0 <= place < batch.count:
                if batch.positions is None:
                    return batch, place
                row = int(np.searchsorted(batch.positions, place))
                if row < len(batch.positions) and batch.positions[row] == place:
                    return batch, row
        return None
