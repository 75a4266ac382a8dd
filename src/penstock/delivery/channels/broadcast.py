"""Messages into channels: each is one append to the channel's topic, once for every id."""

from __future__ import annotations

import asyncio

from penstock.delivery.channels.channels import Channels, OpenChannel
from penstock.delivery.channels.messages import JobMessage, Outgoing, subject
from penstock.ledger.job_ids import message_id, message_offset
from penstock.metadata.channel_records import Channel
from penstock.model.errors import PenstockError
from penstock.model.run import Origin, Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset
from penstock.topics import Pusher, PushItem


class Broadcasts:
    """Sends and finds messages of channels by their ids."""

    def __init__(self, channels: Channels, pusher: Pusher) -> None:
        self._channels, self._pusher = channels, pusher
        self._sending: dict[tuple[str, str], asyncio.Future[None]] = {}
        """Ids that are on their way."""

    async def send(self, channel: Channel, message: Outgoing) -> tuple[str, Offset] | None:
        """Append, as durable as the topic promises: the id and offset; None if the id is taken.

        Raises what appending raises, FormatError when a header cannot be stored.
        """
        if not message.id:
            offset = await self._append(channel, message)
            return await self._assigned_id(channel, offset), offset
        place = channel.id, message.id
        while (other := self._sending.get(place)) is not None:
            await asyncio.wait([other])
        mine = self._sending[place] = asyncio.get_running_loop().create_future()
        try:
            found = await self._channels.find(channel)
            if await self.find(channel, found, message.id) is not None:
                return None
            return message.id, await self._append(channel, message)
        finally:
            del self._sending[place]
            mine.set_result(None)

    async def find(self, channel: Channel, found: OpenChannel, id_: str) -> Offset | None:
        """The offset of the message with this id."""
        if not id_:
            return None
        wanted = subject(channel.id, id_)
        offset = await found.jobs.partition.subjects.last(Filter.exactly(wanted))
        if offset is not None:
            return offset
        given = message_offset(channel.key.encode(), id_)
        if given is None:
            return None
        message = await found.jobs.message(given)
        if message is None or message.id:
            return None
        current = id_of(channel, message)
        # An id of an earlier format has another length; its tag has been checked.
        return Offset(given) if id_ == current or len(id_) != len(current) else None

    async def message(self, channel: Channel, id_: str) -> JobMessage | None:
        """A message by its id."""
        found = await self._channels.find(channel)
        offset = await self.find(channel, found, id_)
        return None if offset is None else await found.jobs.message(offset)

    async def _assigned_id(self, channel: Channel, offset: Offset) -> str:
        """The id of a message that was just stored without one."""
        message = await (await self._channels.find(channel)).jobs.message(offset)
        # A limit of the topic may have deleted the message already.
        time_us = self._channels.clock.now_us() if message is None else message.timestamp_us
        return message_id(channel.key.encode(), offset, time_us)

    async def _append(self, channel: Channel, message: Outgoing) -> Offset:
        opened = (await self._channels.find(channel)).jobs.opened
        run = Run(subject(channel.id, message.id), [message.payload], [message.block()])
        (answer,) = await self._pusher.push([PushItem(opened, None, run, Origin.BROKER)])
        if isinstance(answer, PenstockError):
            raise answer
        return answer.first


def id_of(channel: Channel, message: JobMessage) -> str:
    """A message's id: its sender's, or the one that its place gives it."""
    return message.id or message_id(channel.key.encode(), message.offset, message.timestamp_us)
