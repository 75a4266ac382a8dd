"""Messages into channels: each is one append to the channel's topic, once for every id."""

from __future__ import annotations

import asyncio

from penstock.delivery.channels.channels import Channels, OpenChannel
from penstock.delivery.channels.messages import JobMessage, Outgoing, subject
from penstock.ledger.job_ids import message_id, message_offset
from penstock.log.subjects.index import Miss
from penstock.metadata.channel_records import Channel
from penstock.model.errors import PenstockError
from penstock.model.run import Run
from penstock.model.subjects import Filter
from penstock.model.units import ONLY_PARTITION, Offset
from penstock.topics.pusher import Pusher, PushItem


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
            return message_id(channel.key.encode(), offset), offset
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
        index, wanted = found.jobs.log.index, subject(channel.id, id_)
        offset = index.peek_last(ONLY_PARTITION, wanted)
        if offset is Miss.MISS:
            offset = await index.last(ONLY_PARTITION, Filter.parse(wanted))
        if offset is not None:
            assert not isinstance(offset, Miss)
            return offset
        given = message_offset(channel.key.encode(), id_)
        if given is None:
            return None
        message = await found.jobs.message(given)
        return None if message is None or message.id else Offset(given)

    async def message(self, channel: Channel, id_: str) -> JobMessage | None:
        """A message by its id."""
        found = await self._channels.find(channel)
        offset = await self.find(channel, found, id_)
        return None if offset is None else await found.jobs.message(offset)

    async def _append(self, channel: Channel, message: Outgoing) -> Offset:
        opened = (await self._channels.find(channel)).jobs.opened
        run = Run(subject(channel.id, message.id), [message.payload], [message.block()])
        (answer,) = await self._pusher.push([PushItem(opened, None, run)])
        if isinstance(answer, PenstockError):
            raise answer
        return answer.first


def id_of(channel: Channel, message: JobMessage) -> str:
    """A message's id: its sender's, or the one that its place gives it."""
    return message.id or message_id(channel.key.encode(), message.offset)
