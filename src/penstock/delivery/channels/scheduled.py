"""Stores scheduled messages and broadcasts each of them once, when it is due.

A message is broadcast under its id, which a channel accepts once. After a crash between the
broadcast and the record of it, the next attempt finds the id taken and records the broadcast.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec
import structlog

from penstock.delivery.channels.broadcasts import Broadcasts
from penstock.delivery.channels.entities import Channel, ScheduledMessage, Versioned
from penstock.delivery.channels.messages import NewMessage
from penstock.delivery.channels.open_channels import OpenChannels
from penstock.delivery.channels.store import EntityTable
from penstock.host.entropy import random_bytes
from penstock.host.tasks import Tasks, Timer
from penstock.ledger.job_ids import random_id
from penstock.model.errors import Overloaded, PenstockError

SENT_KEPT: Final = 1000
"""How many broadcast messages of a channel are remembered as scheduled ones."""
UNSENT_MAX: Final = 100_000
UNSENT_BYTES_MAX: Final = 256 << 20
"""Limits of the unsent messages of one channel, and of the bytes of all; they are in memory."""
RETRY_US: Final = 1_000_000

_events = structlog.get_logger(__name__)


class ScheduledMessages:
    """The scheduled messages of the channels that this broker serves."""

    def __init__(self, channels: OpenChannels, broadcasts: Broadcasts) -> None:
        self._channels, self._broadcasts = channels, broadcasts
        self._store, self._clock = channels.store, channels.clock
        self._due: list[tuple[int, str, str]] = []
        self._timer = Timer(self._start)
        self._tasks = Tasks()
        self._sending = False
        self._closed = False
        self._sending_key = ""
        """The key of the message that is being broadcast and can no longer be cancelled."""
        self._stop_watching = channels.watch(self._load)
        self._clock.jumps.watch(self._set_timer)

    async def close(self) -> None:
        self._closed = True
        self._stop_watching()
        self._clock.jumps.unwatch(self._set_timer)
        self._timer.stop()
        await self._tasks.drain()

    def in_channel(self, channel_id: str) -> EntityTable[ScheduledMessage]:
        """The scheduled messages of a channel, recently sent ones included."""
        return self._store.scheduled(channel_id)

    async def add(self, channel: Channel, message: NewMessage, due_us: int) -> str | None:
        """Store a message until it is due; returns its id, None if that is taken.

        Raises Overloaded.
        """
        id_ = message.id or random_id(self._clock.now_us(), random_bytes(8))
        table = self._store.scheduled(channel.id)
        if len(table) >= UNSENT_MAX + SENT_KEPT:
            raise Overloaded("too many scheduled messages", "UNSENT_MAX", UNSENT_MAX)
        if self._store.scheduled_bytes + len(message.payload) > UNSENT_BYTES_MAX:
            raise Overloaded("too much is scheduled", "UNSENT_BYTES_MAX", UNSENT_BYTES_MAX)
        stored_offset = await self._broadcasts.offset_of(channel, id_)
        if stored_offset is not None or table.get(id_) is not None:
            return None
        scheduled = ScheduledMessage(
            channel.id,
            id_,
            message.producer,
            message.content_type,
            message.priority,
            list(message.headers),
            message.payload,
            due_us,
            created_us=self._clock.now_us(),
        )
        if not await self._store.put(Versioned(scheduled, table.revision(id_))):
            return None
        heapq.heappush(self._due, (due_us, channel.id, id_))
        self._set_timer()
        return id_

    async def cancel(self, scheduled: ScheduledMessage) -> bool:
        """Delete a message; False if it was sent already."""
        if scheduled.sent_us or self._store.key(scheduled) == self._sending_key:
            return False
        table = self._store.scheduled(scheduled.channel)
        return await self._store.delete(scheduled, table.revision(scheduled.id))

    def next_us(self, channel_id: str) -> int | None:
        """When the next message of a channel is due."""
        unsent = [s.due_us for s in self._store.scheduled(channel_id) if not s.sent_us]
        return min(unsent, default=None)

    def _load(self, channel: Channel) -> None:
        for scheduled in self._store.scheduled(channel.id):
            if not scheduled.sent_us:
                heapq.heappush(self._due, (scheduled.due_us, channel.id, scheduled.id))
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer.stop()
        if self._due and not self._sending and not self._closed:
            self._timer.after(max(self._due[0][0] - self._clock.now_us(), 0) / 1e6)

    def _start(self) -> None:
        self._sending = True
        self._tasks.start(self._send_due())

    async def _send_due(self) -> None:
        try:
            while self._due and self._due[0][0] <= self._clock.now_us() and not self._closed:
                _, channel_id, id_ = heapq.heappop(self._due)
                try:
                    await self._send(channel_id, id_)
                except PenstockError as error:
                    _events.warning("scheduled_not_sent", channel=channel_id, reason=str(error))
                    heapq.heappush(self._due, (self._clock.now_us() + RETRY_US, channel_id, id_))
        finally:
            self._sending = False
            self._set_timer()

    async def _send(self, channel_id: str, id_: str) -> None:
        channel, table = self._store.channels.get(channel_id), self._store.scheduled(channel_id)
        found = table.find(id_)
        if channel is None or found is None or found.entity.sent_us:
            return
        scheduled, revision = found
        self._sending_key = self._store.key(scheduled)
        message = NewMessage(
            id_,
            scheduled.producer,
            scheduled.priority,
            scheduled.content_type,
            scheduled.headers,
            scheduled.payload,
        )
        await self._broadcasts.send(channel, message)
        sent = msgspec.structs.replace(scheduled, payload=b"", sent_us=self._clock.now_us())
        await self._store.put(Versioned(sent, revision))
        self._sending_key = ""
        await self._delete_oldest_sent(channel_id)

    async def _delete_oldest_sent(self, channel_id: str) -> None:
        """Delete sent messages beyond the limit."""
        table = self._store.scheduled(channel_id)
        excess = sum(1 for scheduled in table if scheduled.sent_us) - SENT_KEPT
        for scheduled in table.oldest_first():
            if excess <= 0:
                return
            if scheduled.sent_us:
                await self._store.delete(scheduled, table.revision(scheduled.id))
                excess -= 1
