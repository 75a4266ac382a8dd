"""A topic, or a partition of one, as a stream: messages by sequence and by subject.

The sequence of a message is its offset plus one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from penstock.host.notifier import Cancel, Notifier
from penstock.log import LogObserver
from penstock.model.subjects import Filter, SubjectMapping
from penstock.model.units import Offset, PartitionId
from penstock.streams.admission import Admission
from penstock.streams.limits import LimitEnforcer, limits_of
from penstock.streams.shared_scan import SharedScan
from penstock.streams.sizes import SizeCounting
from penstock.streams.stream_reader import SUBJECTS_PAGE, StreamReader
from penstock.topics import OpenTopic
from penstock.wire.jetstream.stream_config import StreamConfig

DELETED_LISTED_MAX: Final = 100_000
"""Limit of the deleted sequences in the details of a stream; `num_deleted` counts all of them."""


class Holder(Protocol):
    """A consumer or copy that a stream retains messages for, if its retention depends on
    interest.
    """

    def needs(self, seq: int) -> bool: ...

    def wants(self, subject: bytes) -> bool: ...

    @property
    def settled_seq(self) -> int:
        """No message up to this sequence is needed."""
        ...

    @property
    def reached_seq(self) -> int:
        """No message after this sequence was delivered."""
        ...


class Stream(StreamReader, LogObserver):
    """One stream that this broker serves: its configuration, its state and its deletions."""

    def __init__(
        self,
        name: str,
        config: StreamConfig,
        opened: OpenTopic,
        partition: PartitionId,
        copies: Callable[[], Iterable[Holder]] = tuple,
    ) -> None:
        """`copies` returns the sources of other streams that copy from this one."""
        super().__init__(name, opened.partition(partition), opened.topic.name.topic.encode())
        self.config, self.opened, self.topic = config, opened, opened.topic
        self.created_us = opened.topic.created_us
        counting = SizeCounting(config.storage == "memory", self.subject)
        self.scan = SharedScan(self.partition)
        """Reads older messages for all parts of the stream that need them."""
        self.enforcer = LimitEnforcer(self.partition, limits_of(config), counting, self.scan)
        self.counts = self.enforcer.counts
        self.admission = Admission(config, self.partition.id, self.enforcer)
        self.mapping = mapping_of(config)
        """Rewrites subjects before messages are stored; None if they are stored as they are."""
        self.changed = Notifier[[]]()
        """Notifies observers, on the loop, after every commit and deletion."""
        self.copies = copies
        self.copied = Notifier[[Sequence[int]]]()
        """Notifies observers of the sequences that another stream has copied."""
        self._interested: Callable[[bytes], bool] | None = None
        self.losses = 0
        """How many times messages that were not durable were discarded."""

    @property
    def interested(self) -> Callable[[bytes], bool] | None:
        """Returns whether messages of a subject are stored; None if those of every subject are."""
        return self._interested

    def require_interest(self, interested: Callable[[bytes], bool]) -> Cancel:
        """Store only messages of subjects for which `interested` is true.

        Replaces the previous condition; returns the function that removes this one.
        """
        self._interested = interested

        def cancel() -> None:
            if self._interested is interested:
                self._interested = None

        return cancel

    # -- state

    @property
    def first_offset(self) -> Offset:
        """The offset of the first live message; the next offset if there is none."""
        return self.partition.next_live(self.partition.start_offset)

    @property
    def next_offset(self) -> Offset:
        return self.partition.next_offset

    @property
    def last_seq(self) -> int:
        return self.next_offset

    @property
    def first_seq(self) -> int:
        """The sequence of the first live message, or the next one's; 0 before the first message
        ever.
        """
        return self.first_offset + 1 if self.next_offset else 0

    @property
    def messages(self) -> int:
        return self.partition.live_count

    @property
    def size_bytes(self) -> int:
        """The size as NATS counts it; complete after `measured`."""
        return self.counts.durable_bytes

    @property
    def deleted_count(self) -> int:
        """Number of sequences between the first and the last without a message."""
        bitmap = self.partition.deleted
        first, next_ = self.first_offset, self.next_offset
        return 0 if bitmap is None else bitmap.range_cardinality(first, next_)

    def deleted(self) -> list[int]:
        """The first `DELETED_LISTED_MAX` sequences without a message between the first and the
        last.
        """
        bitmap, count = self.partition.deleted, self.deleted_count
        if bitmap is None:
            return []
        found = bitmap.iter_equal_or_larger(self.first_offset)
        return [offset + 1 for offset in islice(found, min(count, DELETED_LISTED_MAX))]

    async def measured(self) -> None:
        """Wait until `size_bytes` includes the messages that existed before the stream was
        opened.
        """
        await self.enforcer.measuring.measured()

    def measure_if_limited(self) -> None:
        """Start to measure older messages, if there is a byte limit."""
        if self.enforcer.limits.bytes is not None:
            self.enforcer.measuring.start()

    # -- deleting

    async def delete(self, offsets: Sequence[int], reason: str = "message") -> None:
        """Delete single messages; durable on return."""
        alive = [offset for offset in offsets if self.count_all(offset, offset + 1)]
        self.enforcer.note_deleted(0, alive)
        await self._delete(self.partition.delete(alive, reason))

    async def purge(self, before: int, reason: str = "purge", *, past_end: bool = False) -> None:
        """Delete everything before an offset; durable on return.

        With `past_end`, an offset after the end becomes that of the next message.
        """
        if before > self.partition.start_offset:
            if past_end:
                await self.partition.reserve(before - self.next_offset)
            self.enforcer.note_deleted(before, ())
            await self._delete(self.partition.purge(before, reason, past_end=past_end))

    async def _delete(self, deletion: Awaitable[None]) -> None:
        """Await a deletion that is counted already; if it fails, count again."""
        try:
            await deletion
        except BaseException:
            self.count_again()
            raise
        self.changed()

    # -- observer of the log

    def committed(self, partitions: set[int]) -> None:
        """Notify observers of a commit; the limit enforcer was notified before."""
        if self.partition.id in partitions:
            self.changed()

    def discarded(self) -> None:
        """Note a loss of messages that were not durable; the limit enforcer was notified before."""
        self.losses += 1
        self.measure_if_limited()

    def count_again(self) -> None:
        """Count again from what is durable."""
        self.enforcer.discarded()
        self.discarded()

    async def update(self, config: StreamConfig) -> None:
        """Apply another configuration; its limits hold on return."""
        self.config = self.admission.config = config
        self.mapping = mapping_of(config)
        self.enforcer.limits = limits = limits_of(config)
        await self.opened.flush()
        after: bytes | None = b"" if limits.per_subject else None
        while after is not None:
            page = await self.subjects(Filter.parse(b">"), after)
            for subject, count, _ in page:
                if count > (limits.per_subject or 0):
                    self.enforcer.subject_offsets.load(subject)
            after = page[-1][0] if len(page) == SUBJECTS_PAGE else None
        if limits.bytes is not None:
            await self.measured()
        await self.enforcer.looked_up()
        self.enforcer.enforce()
        await self.opened.flush()


def mapping_of(config: StreamConfig) -> SubjectMapping | None:
    """The subject mapping in a stream's configuration."""
    transform = config.subject_transform
    if transform is None:
        return None
    return SubjectMapping.parse(transform.src.encode(), transform.dest.encode())
