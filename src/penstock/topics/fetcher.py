"""Fetches messages of one partition from an offset on, waiting at the head if necessary.

read -> take messages up to the share of this fetch -> read on
  at the head: if all fetches of the request have enough, or at the deadline: return
               else park until a message is appended, the others have enough, or the deadline
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from penstock.log import READ_BYTES
from penstock.metadata.catalog import Admin
from penstock.model.batch import ENVELOPE, AtHead, Batch, Gone
from penstock.model.columns import content_bytes
from penstock.model.errors import OffsetGone, Overloaded
from penstock.model.metrics import Metric, single
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.units import Offset
from penstock.topics.fetch_state import FetchState, Share
from penstock.topics.source import Source, TopicPartition

MESSAGE_BYTES_GUESS: Final = 1 << 10
"""Estimated size of a message, so that a fetch of few messages reads little; if it is too low,
another read follows.
"""


@dataclass(slots=True)
class Fetched:
    """The messages that a fetch collected, in offset order; there may be none."""

    topic: Topic
    value: PartitionValue | None
    requested_offset: Offset
    batches: list[Batch] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(batch.messages for batch in self.batches)

    @property
    def start_offset(self) -> Offset:
        """The first message's offset; the requested offset if there is none."""
        return Offset(int(self.batches[0].offsets()[0])) if self.batches else self.requested_offset

    @property
    def end_offset(self) -> Offset:
        """The last message's offset; the requested offset if there is none."""
        return (
            Offset(int(self.batches[-1].offsets()[-1])) if self.batches else self.requested_offset
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of `table`: envelope columns first, then the topic's own."""
        typed = self.topic.spec.schema
        return ENVELOPE if typed is None else pa.schema([*list(ENVELOPE)[:3], *typed])

    def table(self) -> pa.Table:
        """The messages as rows."""
        return pa.Table.from_batches([batch.to_arrow() for batch in self.batches], self.schema)


class Fetcher:
    """Serves fetches from a source, on a broker and on a fetch node alike.

    `fetches_max` bounds concurrent fetches; one more is refused.
    """

    def __init__(self, admin: Admin, source: Source, fetches_max: int) -> None:
        self._admin, self._source = admin, source
        self._fetches_max = fetches_max
        self.running = 0
        self.parked = 0

    def metrics(self) -> list[Metric]:
        """The current numbers of fetches."""
        return [
            single(
                "penstock_fetches_running", "gauge", "Fetches in progress or waiting.", self.running
            ),
            single(
                "penstock_fetches_parked", "gauge", "Fetches that wait for messages.", self.parked
            ),
        ]

    async def fetch(
        self, name: TopicName, value: PartitionValue | None, offset: Offset, state: FetchState
    ) -> Fetched:
        """Messages from `offset` on, within the limits of `state`; cancel the task to give up.

        Raises ResourceUnknown, PartitionInvalid, OffsetGone, Overloaded, and what reading raises.
        """
        share = state.join()
        if self.running >= self._fetches_max:
            share.give_back()
            raise Overloaded(
                "too many fetches at the same time", "fetch.max_running", self._fetches_max
            )
        self.running += 1
        try:
            topic = await self._admin.get_topic(name)
            topic.check_partition(value)
            fetched = Fetched(topic, value, offset)
            limit = asyncio.timeout_at(state.deadline)
            try:
                async with limit:
                    await self._collect(fetched, state, share)
            except TimeoutError:
                if not limit.expired():
                    raise
            return fetched
        finally:
            self.running -= 1
            share.give_back()

    async def _collect(self, fetched: Fetched, state: FetchState, share: Share) -> None:
        partition = TopicPartition(fetched.topic, fetched.value)
        offset = fetched.requested_offset
        while not state.full:
            if not share.left:
                if not await self._more_budget(state, share):
                    return
                continue
            guess = min(share.left * MESSAGE_BYTES_GUESS, READ_BYTES, share.bytes_left)
            answer = await self._read(partition, offset, guess)
            if isinstance(answer, list):
                offset = _take(fetched, answer, offset, share)
                continue
            share.give_back()
            if state.enough:
                return
            await self._wait(partition, offset, state)

    async def _read(
        self, partition: TopicPartition, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead:
        answer = await self._source.read(partition, offset, bytes_max)
        if isinstance(answer, Gone):
            raise OffsetGone(partition.topic.name.full, partition.value, offset, answer.earliest)
        return answer

    async def _more_budget(self, state: FetchState, share: Share) -> bool:
        """Wait until other fetches return messages; False if the fetch is to end instead.

        If enough is collected, they get one turn of the event loop for it.
        """
        if state.enough:
            await asyncio.sleep(0)
            return bool(share.left)
        await self._sleep(state.park())
        return True

    async def _wait(self, partition: TopicPartition, offset: Offset, state: FetchState) -> None:
        with self._source.arrival(partition, offset, state.deadline) as arrival:
            if not isinstance(await self._read(partition, offset, 1), AtHead) or state.enough:
                return
            park = state.park()
            arrival.add_done_callback(lambda _: state.unpark(park))
            await self._sleep(park)

    async def _sleep(self, park: asyncio.Future[None]) -> None:
        self.parked += 1
        try:
            await park
        finally:
            self.parked -= 1


def _take(fetched: Fetched, batches: list[Batch], offset: Offset, share: Share) -> Offset:
    """Add messages to `fetched` up to the share; returns the offset to continue from."""
    for batch in batches:
        if not share.left:
            break
        part = batch.starting_at(offset)
        if part.messages > share.left:
            part = part.limited_to(int(part.offsets()[share.left]) - part.first_offset)
        offset = part.next_offset
        if part.messages:
            share.take(part.messages, content_bytes(part.content))
            fetched.batches.append(part)
    return offset
