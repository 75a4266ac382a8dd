"""Messages for later: kept as records, sent to their channel when their time has come, once.

A message is sent under its id, and an id is taken once: what a crash leaves between sending and
noting that it was sent is noted at the next attempt.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

import msgspec
import structlog

from penstock.delivery.channels.broadcast import Broadcasts
from penstock.delivery.channels.channels import Channels
from penstock.delivery.channels.messages import Outgoing
from penstock.host.entropy import random_bytes
from penstock.ledger.job_ids import random_id
from penstock.metadata.channel_records import Channel, Kept, Scheduled
from penstock.model.errors import Overloaded, PenstockError

SENT_KEPT: Final = 1000
"""Of a channel's messages that were sent on time, so many are remembered as scheduled ones."""
UNSENT_MAX: Final = 100_000
UNSENT_BYTES_MAX: Final = 256 << 20
"""Of a channel so many, of all channels so many bytes, may wait: they are in memory."""
RETRY_US: Final = 1_000_000

_events = structlog.get_logger(__name__)


class Schedules:
    """The scheduled messages of the channels that are served here."""

    def __init__(self, channels: Channels, broadcasts: Broadcasts) -> None:
        self._channels, self._broadcasts = channels, broadcasts
        self._store, self._clock = channels.store, channels.clock
        self._due: list[tuple[int, str, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._sending = ""
        """Key of the one that is on its way: it cannot be cancelled any more."""
        channels.opened.append(self._load)
        self._clock.jumps.watch(self._arm)

    async def close(self) -> None:
        self._closed = True
        self._clock.jumps.unwatch(self._arm)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def add(self, channel: Channel, message: Outgoing, due_us: int) -> str | None:
        """Keep a message until its time; its id, None if that is taken. Raises Overloaded."""
        id_ = message.id or random_id(self._clock.now_us(), random_bytes(8))
        shelf = self._store.scheduled(channel.id)
        if len(shelf) >= UNSENT_MAX + SENT_KEPT:
            raise Overloaded("too many scheduled messages", "UNSENT_MAX", UNSENT_MAX)
        if self._store.scheduled_bytes + len(message.payload) > UNSENT_BYTES_MAX:
            raise Overloaded("too much is scheduled", "UNSENT_BYTES_MAX", UNSENT_BYTES_MAX)
        found = await self._channels.find(channel)
        taken = await self._broadcasts.find(channel, found, id_)
        if taken is not None or shelf.get(id_) is not None:
            return None
        now = self._clock.now_us()
        scheduled = Scheduled(
            channel.id,
            id_,
            message.producer,
            message.content_type,
            message.priority,
            list(message.headers),
            message.payload,
            due_us,
            now,
        )
        if not await self._store.put(Kept(scheduled, shelf.revision(id_))):
            return None
        heapq.heappush(self._due, (due_us, channel.id, id_))
        self._arm()
        return id_

    async def cancel(self, scheduled: Scheduled) -> bool:
        """Whether it was there and not sent yet."""
        if scheduled.sent_us or self._store.key(scheduled) == self._sending:
            return False
        shelf = self._store.scheduled(scheduled.channel)
        return await self._store.delete(scheduled, shelf.revision(scheduled.id))

    def next_us(self, channel: str) -> int | None:
        """When the next message of a channel is due."""
        waiting = [s.due_us for s in self._store.scheduled(channel) if not s.sent_us]
        return min(waiting, default=None)

    # -- details

    def _load(self, channel: Channel) -> None:
        for scheduled in self._store.scheduled(channel.id):
            if not scheduled.sent_us:
                heapq.heappush(self._due, (scheduled.due_us, channel.id, scheduled.id))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        running = self._task is not None and not self._task.done()
        if self._due and not running and not self._closed:
            seconds = max(self._due[0][0] - self._clock.now_us(), 0) / 1e6
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._due and self._due[0][0] <= self._clock.now_us() and not self._closed:
            _, channel, id_ = heapq.heappop(self._due)
            try:
                await self._send(channel, id_)
            except PenstockError as error:
                _events.warning("scheduled_not_sent", channel=channel, reason=str(error))
                heapq.heappush(self._due, (self._clock.now_us() + RETRY_US, channel, id_))
        asyncio.get_running_loop().call_soon(self._arm)

    async def _send(self, channel_id: str, id_: str) -> None:
        channel, shelf = self._store.channels.get(channel_id), self._store.scheduled(channel_id)
        scheduled = shelf.get(id_)
        if channel is None or scheduled is None or scheduled.sent_us:
            return
        revision, self._sending = shelf.revision(id_), self._store.key(scheduled)
        message = Outgoing(
            id_,
            scheduled.producer,
            scheduled.priority,
            scheduled.content_type,
            scheduled.headers,
            scheduled.payload,
        )
        await self._broadcasts.send(channel, message)
        sent = msgspec.structs.replace(scheduled, payload=b"", sent_us=self._clock.now_us())
        await self._store.put(Kept(sent, revision))
        self._sending = ""
        await self._forget_some(channel_id)

    async def _forget_some(self, channel: str) -> None:
        shelf = self._store.scheduled(channel)
        over = sum(1 for scheduled in shelf if scheduled.sent_us) - SENT_KEPT
        for scheduled in shelf.oldest():
            if over <= 0:
                return
            if scheduled.sent_us:
                await self._store.delete(scheduled, shelf.revision(scheduled.id))
                over -= 1
