"""Where a fetch reads from: this broker's own logs, or a remote owner and the bucket."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.units import Offset


class Place(NamedTuple):
    """One partition of a topic, by its value; None is the only one of an unpartitioned topic."""

    topic: Topic
    value: PartitionValue | None


class Source(Protocol):
    """Reads committed messages of any topic."""

    async def read(
        self, place: Place, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        """Batches from the first live offset at or after `offset`, about `bytes_max`, no gap.

        A partition that does not exist yet is at its head. Raises what reading raises.
        """

    def arrival(
        self, place: Place, offset: Offset, deadline: float
    ) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that completes when there may be more; register, then read again, then wait.

        `deadline` is the loop's time at which nobody is interested any more.
        """
