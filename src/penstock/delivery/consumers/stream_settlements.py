"""Records what the consumers of one stream have settled, and frees what none of them needs.

Settlements are written to the log, ack floors to the metadata store. Files of the log are released
once every consumer has passed them, and messages are deleted as the stream's retention says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import structlog

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.settling import (
    JournalWriter,
    RestoredState,
    UnreadFiles,
    read_settled,
)
from penstock.delivery.consumers.unneeded_messages import UnneededMessages
from penstock.host.tasks import Tasks
from penstock.metadata import SubscriptionId
from penstock.model.errors import PenstockError
from penstock.model.units import Offset
from penstock.streams import Holder, Stream
from penstock.wire.jetstream import errors

_events = structlog.get_logger(__name__)


class StreamSettlements:
    """The settlements of all consumers of one stream.

    Consumers with `mem_storage` leave no trace in the log and in the metadata store.
    """

    def __init__(
        self, host: DeliveryHost, stream: Stream, scope: str, consumers: dict[str, Consumer]
    ) -> None:
        """`scope` is a prefix of every name in records that the streams of a topic share.

        `consumers` are the current consumers by name; the caller changes them.
        """
        self._stream, self._progress, self._scope = stream, host.progress, scope
        self._consumers = consumers
        self._writer = JournalWriter(stream.opened, host.limits.settle_seconds)
        self._files = UnreadFiles(stream)
        self._unneeded = UnneededMessages(stream, self.holders)
        self._tasks = Tasks()
        stream.copied.add(self._unneeded.delete_settled)

    def holders(self) -> Iterable[Holder]:
        """The consumers of the stream, and the sources of other streams that copy it."""
        return chain(self._consumers.values(), self._stream.copies())

    # -- life of a consumer

    def follow(self, consumer: Consumer, start: int) -> None:
        """Begin to save the ack floor of a new consumer, which starts at an offset.

        The consumer's record holds the start, so nobody waits for the first save.
        """
        if not consumer.config.mem_storage:
            self._tasks.start(self._follow(consumer, Offset(start)))
        self.release_files()

    async def restore(self, name: str, state: RestoredState | None, recorded_start: int) -> int:
        """The offset from which a restored consumer delivers; its ack floor is saved from now on.

        Without its settlements it delivers from the saved ack floor.
        """
        floor = await self._progress.start(self._subscription(name), Offset(recorded_start))
        return max(recorded_start, floor) if state is None else state.settled.stream_seq

    def restored(self, consumer: Consumer, state: RestoredState) -> None:
        """Continue the settlements of a restored consumer."""
        self._writer.restored(consumer.journal, state.frame)

    async def read(self) -> dict[tuple[str, int], RestoredState]:
        """Read the settlements of all consumers from the log, see `read_settled`."""
        return await read_settled(self._stream.opened, self._scope)

    async def save_floor(self, consumer: Consumer, start: int) -> None:
        """Save the first ack floor of a consumer; durable on return."""
        await self._progress.start(self._subscription(consumer.name), Offset(start))

    def forget(self, consumer: Consumer) -> None:
        """Release the files and messages that only a deleted consumer needed."""
        self._writer.forget(consumer.journal)
        self.release_files()
        self._unneeded.consumer_deleted()

    async def remove(self, consumer: Consumer) -> None:
        """Delete the ack floor of a deleted consumer from the metadata store."""
        await self._progress.remove(self._subscription(consumer.name))

    # -- changes

    def changed(self, consumer: Consumer) -> None:
        """Write the changes in a consumer's journal within the interval."""
        settled = consumer.settled_seq
        if consumer.config.mem_storage:
            consumer.journal.discard()
        else:
            self._writer.write_soon(consumer.journal)
            self._progress.record(self._subscription(consumer.name), Offset(settled))
        if self._files.releases(settled):
            self.release_files()

    def settled(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """Delete messages that a consumer has settled, if no other needs them."""
        self._unneeded.delete_settled(seqs)

    def committed(self) -> None:
        """Record that messages were added to the log."""
        self._files.record_commit()

    def write_if_rotated(self) -> None:
        """Write settlements whose last complete one lies in an older file of the log."""
        if self._writer.rotated():
            self._writer.flush()

    def release_files(self) -> None:
        """Release the files of the log that every consumer has passed."""
        if self._writer.durable and not self._stream.opened.closed:
            self._files.release([consumer.settled_seq for consumer in self._consumers.values()])

    async def delete_unneeded(self) -> None:
        """After a restart, delete messages that were settled but not deleted before it."""
        await self._unneeded.delete_settled_before_start()

    # -- durability

    def when_durable(self, consumer: Consumer, call: Callable[[], None]) -> None:
        """Call once all that the consumer settled is durable, and its messages are deleted."""

        def written(durable: bool) -> None:
            if durable:
                self._unneeded.when_deleted(call)

        if consumer.config.mem_storage:
            written(True)
        else:
            self._writer.write_now(consumer.journal, written)

    async def durable(self, consumer: Consumer) -> None:
        """Wait until the consumer's state is durable; raises ApiError if it cannot be written."""
        if consumer.config.mem_storage:
            return
        durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._writer.write_now(consumer.journal, durable.set_result)
        if not await durable:
            raise errors.CONSUMER_CREATE.error("the disk cannot be written now; try again")

    async def flush(self) -> None:
        """Write all changes and wait until they are durable."""
        await self._writer.close()

    async def close(self) -> None:
        """Finish all saves, deletions and writes."""
        await self._tasks.drain()
        await self._unneeded.close()
        await self._writer.close()

    # -- details

    async def _follow(self, consumer: Consumer, start: Offset) -> None:
        subscription = self._subscription(consumer.name)
        try:
            await self._progress.start(subscription, start)
            self._progress.record(subscription, Offset(consumer.settled_seq))
            if self._consumers.get(consumer.name) is not consumer:
                await self._progress.remove(subscription)
        except PenstockError as error:
            _events.warning("floor_not_saved", subscription=str(subscription), reason=str(error))

    def _subscription(self, name: str) -> SubscriptionId:
        return SubscriptionId(self._stream.topic.name, self._scope + name)
