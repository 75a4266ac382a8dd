"""Broadcasts messages to channels, and finds and lists the messages of channels.

A broadcast is one append to the topic of the channel. A producer's message id is accepted once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.delivery.channels.entities import Channel, Endpoint
from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.messages import JobMessage, NewMessage, message_subject
from penstock.delivery.channels.open_channels import OpenChannels
from penstock.delivery.channels.store import PAGE_SIZE, CursorQuery
from penstock.host.tasks import KeyedLocks
from penstock.ledger.job_ids import message_id, message_offset
from penstock.ledger.job_states import JobState
from penstock.model.run import Origin, Run
from penstock.model.subjects import Filter
from penstock.model.units import ONLY_PARTITION, Offset

SKIPPED_MAX: Final = 100_000
"""Maximum number of offsets that one page looks at, deleted messages included."""


class JobOfMessage(NamedTuple):
    """The job of one endpoint for a message."""

    endpoint: Endpoint
    state: JobState
    changed_us: int


class MessageDetails(NamedTuple):
    """A message and its jobs."""

    id: str
    message: JobMessage
    dispatched: bool
    """Whether it has jobs; a message has none for a moment after it was stored."""
    jobs: list[JobOfMessage]


class MessageCounts(NamedTuple):
    """The number of stored messages of a channel, without and with jobs."""

    acknowledged: int
    dispatched: int


class Broadcasts:
    """The messages of all channels."""

    def __init__(self, channels: OpenChannels) -> None:
        self._channels, self._store = channels, channels.store
        self._id_locks = KeyedLocks[tuple[str, str]]()

    async def send(self, channel: Channel, message: NewMessage) -> str | None:
        """Append a message, as durable as the topic promises; None if its id is taken.

        Returns the id of the message. Raises what appending raises, and FormatError for a header
        that cannot be stored.
        """
        if not message.id:
            return await self._assigned_id(channel, await self._append(channel, message))
        async with self._id_locks[channel.id, message.id]:
            if await self.offset_of(channel, message.id) is not None:
                return None
            await self._append(channel, message)
            return message.id

    async def offset_of(self, channel: Channel, id_: str) -> Offset | None:
        """The offset of the message with an id; None if there is no such message."""
        if not id_:
            return None
        jobs = (await self._channels.find(channel)).jobs
        subject = message_subject(channel.id, id_)
        offset = await jobs.partition.subjects.last(Filter.exactly(subject))
        if offset is not None:
            return offset
        decoded = message_offset(channel.key.encode(), id_)
        if decoded is None:
            return None
        message = await jobs.message(decoded)
        if message is None or message.id:
            return None
        current_id = message.public_id(channel.key)
        # Ids of an earlier format have another length; decoding has verified them.
        return Offset(decoded) if id_ == current_id or len(id_) != len(current_id) else None

    async def message(self, channel: Channel, id_: str) -> JobMessage | None:
        """The message with an id."""
        offset = await self.offset_of(channel, id_)
        if offset is None:
            return None
        return await (await self._channels.find(channel)).jobs.message(offset)

    async def details(self, channel: Channel, id_: str) -> MessageDetails | None:
        """The message with an id, and its jobs."""
        message = await self.message(channel, id_)
        if message is None:
            return None
        jobs = await self._current_jobs(channel)
        dispatched = message.offset < jobs.head
        found = self._jobs_of(channel, jobs, message) if dispatched else []
        return MessageDetails(message.public_id(channel.key), message, dispatched, found)

    async def page(
        self,
        channel: Channel,
        query: CursorQuery,
        *,
        acknowledged: bool = True,
        dispatched: bool = True,
    ) -> list[JobMessage]:
        """Messages nearest to the cursor of a query, newest first.

        `acknowledged` selects messages without jobs, `dispatched` those with jobs.
        """
        jobs = await self._current_jobs(channel)
        low, stop = int(jobs.partition.start_offset), int(jobs.partition.next_offset)
        if not acknowledged:
            stop = min(stop, jobs.head)
        if not dispatched:
            low = max(low, jobs.head)
        if not acknowledged and not dispatched:
            return []
        key = channel.key.encode()
        newer = query.newer and message_offset(key, query.newer.id)
        older = query.older and message_offset(key, query.older.id)
        if newer is not None:
            return (await _read_upward(jobs, max(newer + 1, low), stop))[::-1]
        return await _read_downward(jobs, low, stop if older is None else min(older, stop))

    async def counts(self, channel: Channel) -> MessageCounts:
        """How many messages a channel has."""
        jobs = await self._current_jobs(channel)
        acknowledged = max(jobs.partition.next_offset - jobs.head, 0)
        return MessageCounts(acknowledged, jobs.partition.live_count - acknowledged)

    async def _current_jobs(self, channel: Channel) -> ChannelJobs:
        """The jobs of a channel, created for all messages that are durable now."""
        jobs = (await self._channels.find(channel)).jobs
        await jobs.catch_up()
        return jobs

    def _jobs_of(
        self, channel: Channel, jobs: ChannelJobs, message: JobMessage
    ) -> list[JobOfMessage]:
        found = []
        for endpoint in self._store.endpoints(channel.id):
            ledger = jobs.ledgers.get(endpoint.number)
            facts = None if ledger is None else ledger.facts(message.offset)
            if facts is not None:
                changed_us = facts.changed_us or message.timestamp_us
                found.append(JobOfMessage(endpoint, facts.state, changed_us))
        return found

    async def _assigned_id(self, channel: Channel, offset: Offset) -> str:
        """The id of a message that was just stored without a producer's id."""
        message = await (await self._channels.find(channel)).jobs.message(offset)
        # A limit of the topic may have deleted the message already.
        time_us = self._channels.clock.now_us() if message is None else message.timestamp_us
        return message_id(channel.key.encode(), offset, time_us)

    async def _append(self, channel: Channel, message: NewMessage) -> Offset:
        opened = (await self._channels.find(channel)).jobs.opened
        subject = message_subject(channel.id, message.id)
        run = Run(subject, [message.payload], [message.encode_headers()])
        return (await opened.partition(ONLY_PARTITION).publish(run, origin=Origin.BROKER)).first


async def _read_downward(jobs: ChannelJobs, low: int, stop: int) -> list[JobMessage]:
    """The last messages before `stop`, newest first."""
    messages: list[JobMessage] = []
    first = max(low, stop - SKIPPED_MAX)
    for offset in range(stop - 1, first - 1, -1):
        if (stop - 1 - offset) % PAGE_SIZE == 0:
            # Fills the cache of the jobs with a forward read of a whole page.
            await jobs.message(max(first, offset - PAGE_SIZE + 1))
        message = await jobs.message(offset)
        if message is not None:
            messages.append(message)
            if len(messages) == PAGE_SIZE:
                break
    return messages


async def _read_upward(jobs: ChannelJobs, first: int, stop: int) -> list[JobMessage]:
    """The first messages at or after `first`, oldest first."""
    messages: list[JobMessage] = []
    for offset in range(first, min(stop, first + SKIPPED_MAX)):
        message = await jobs.message(offset)
        if message is not None:
            messages.append(message)
            if len(messages) == PAGE_SIZE:
                break
    return messages
