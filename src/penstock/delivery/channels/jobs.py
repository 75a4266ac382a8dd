"""The jobs of one channel: a ledger for each endpoint, derived from the log of the channel's topic.

    a commit of the log -> a job in every ledger       requests, deliveries, time -> entries
    the entries of a turn -> one settle frame -> durable -> the requests receive replies

After a restart the ledgers are restored from the last snapshot, the messages since, and the entries
since. The same happens if the log refuses entries that the ledgers already contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import structlog
from pyroaring import BitMap64

from penstock.delivery.channels.entities import Endpoint
from penstock.delivery.channels.messages import JobMessage, MessageCache, job_keys, priorities
from penstock.delivery.channels.store import JobFloors, TopicFloors
from penstock.delivery.settlement_writer import SettlementFrame, SettlementWriter
from penstock.host.clock import Clock
from penstock.host.notifier import Cancel, Notifier
from penstock.host.tasks import Backoff, Tasks, Timer
from penstock.ledger import job_records
from penstock.ledger.job_column import Column
from penstock.ledger.job_records import KIND, Change, Entry, JobSnapshot, Start
from penstock.ledger.job_states import JobRules
from penstock.ledger.jobs import JobLedger
from penstock.model.batch import Batch, Gone
from penstock.model.errors import DataDamaged, LogClosed, PenstockError
from penstock.model.units import ONLY_PARTITION, Offset
from penstock.topics import OpenTopic

READ_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 10.0
TIMER_SECONDS: Final = 0.001
"""The timer may fire this much early."""
SNAPSHOT_BYTES_MIN: Final = 1 << 20
SNAPSHOT_MESSAGES: Final = 100_000
"""A snapshot is written after this many bytes of entries, or messages without a stored job."""

_events = structlog.get_logger(__name__)


class ChannelJobs:
    """One ledger for each endpoint of a channel."""

    def __init__(
        self,
        opened: OpenTopic,
        rules: JobRules,
        clock: Clock,
        floors: JobFloors,
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
    ) -> None:
        self.opened, self.partition = opened, opened.partition(ONLY_PARTITION)
        self.ledgers: dict[int, JobLedger] = {}
        """By the number of the endpoint."""
        self.head = 0
        """Messages before it have their jobs."""
        self._rules, self._clock = rules, clock
        self._snapshot_bytes_min = snapshot_bytes_min
        self._messages = MessageCache(opened)
        self._endpoints: list[Endpoint] = []
        self._priorities = Column("u4")
        self._floors = TopicFloors(floors, opened.topic.name)
        self._ready = Notifier[[int]]()
        self._tasks = Tasks()
        self._follower = Tasks()
        self._timer = Timer(self.tick)
        self._restoring = asyncio.Lock()
        self._advancing = asyncio.Lock()
        self._entries: list[Entry] = []
        self._writer = SettlementWriter(opened, self._collect_entries)
        self._since_bytes = self._since_messages = self._snapshot_bytes = 0
        self._deletions = -1
        """The deletions of the topic that the ledgers reflect; -1 before the first."""

    # -- life cycle

    async def open(self, endpoints: Iterable[Endpoint]) -> None:
        """Restore the jobs, then follow the log."""
        self._endpoints = list(endpoints)
        await self._restore()
        self.tick()
        self._clock.jumps.watch(self._set_timer)
        self._follower.start(self._follow())

    async def close(self) -> None:
        """Stop and write a snapshot, so that the next start has little to read."""
        await self._follower.cancel()
        await self._writer.close()
        await self._tasks.drain()
        self._stop_timer()
        if self._since_bytes or self._since_messages:
            await self._write_snapshot()
        await self._floors.save(self.ledgers)

    def stop(self) -> None:
        """Stop at once and write nothing, because the topic is no longer served here."""
        for task in self._follower:
            task.cancel()
        self._stop_timer()
        self.ledgers.clear()

    def watch(self, ready: Callable[[int], object]) -> Cancel:
        """Call `ready` with the number of each endpoint whose ledger may have queued jobs.

        Returns the function that ends this.
        """
        return self._ready.add(ready)

    @property
    def writable(self) -> bool:
        """Whether changes of jobs can be stored now."""
        return self.opened.writable

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint, or apply its changed entity."""
        self._endpoints = [e for e in self._endpoints if e.number != endpoint.number] + [endpoint]
        if endpoint.number not in self.ledgers:
            ledger = self.ledgers[endpoint.number] = self._new_ledger(endpoint)
            self._deletions = -1
            # Messages may have arrived since its start offset was determined.
            self.head = min(self.head, ledger.head)
            self.partition.wake()

    def remove(self, number: int) -> None:
        """Remove an endpoint and its jobs."""
        self._endpoints = [e for e in self._endpoints if e.number != number]
        self.ledgers.pop(number, None)

    # -- changes of jobs

    def now_us(self) -> int:
        return self._clock.now_us()

    def store(self, *entries: Entry) -> asyncio.Future[None]:
        """Write entries that the ledgers contain already; completes when they are durable."""
        self._entries += entries
        return self._writer.write()

    async def durable(self) -> None:
        """Wait until all entries so far are durable."""
        await self._writer.durable()

    async def catch_up(self) -> None:
        """Create the jobs for all messages that are durable now."""
        if self._restoring.locked():
            async with self._restoring:
                pass
        if self.head < self.partition.next_offset:
            await self._advance()
        self.drop_deleted()

    def drop_deleted(self) -> None:
        """Remove the jobs of messages that were deleted."""
        if self._deletions == self.opened.deletions or self._restoring.locked():
            return
        self._deletions = self.opened.deletions
        start, deleted = self.partition.start_offset, self.partition.deleted
        for ledger in self.ledgers.values():
            ledger.drop_deleted(start, BitMap64() if deleted is None else deleted)

    async def message(self, offset: int) -> JobMessage | None:
        """A message; None if it is deleted."""
        return await self._messages.message(offset)

    def tick(self) -> None:
        """Let time pass for all jobs; while nothing can be stored, retry later."""
        if self._restoring.locked():
            return
        if not self.writable:
            self._timer.after(RETRY_SECONDS)
            return
        self.drop_deleted()
        now = self._clock.now_us()
        for number, ledger in self.ledgers.items():
            expired = ledger.tick(now)
            if expired:
                self.store(*expired)
            if ledger.ready:
                self._ready(number)
        self._set_timer()

    def _set_timer(self) -> None:
        """Tick again when the next retry or timeout is due."""
        times = (ledger.next_us() for ledger in self.ledgers.values())
        due = min((time for time in times if time is not None), default=None)
        if due is None:
            self._timer.stop()
        else:
            self._timer.after(max(due - self._clock.now_us(), 0) / 1e6 + TIMER_SECONDS)

    def _stop_timer(self) -> None:
        self._clock.jumps.unwatch(self._set_timer)
        self._timer.stop()

    # -- following the log

    async def _follow(self) -> None:
        backoff = Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX)
        while True:
            try:
                with self.partition.arrival() as arrival:
                    await self._advance()
                    backoff.reset()
                    if self.opened.closed:
                        return
                    await arrival
            except LogClosed:
                return
            except DataDamaged as error:
                self.head = error.next
            except PenstockError as error:
                if self.opened.closed:
                    return
                self._warn("jobs_not_created", error)
                await backoff.pause()

    async def _advance(self) -> None:
        """Create the jobs for all messages that are not in the ledgers yet."""
        async with self._advancing:
            await self._read_new_messages()
        if self._since_messages >= SNAPSHOT_MESSAGES:
            await self._write_snapshot()

    async def _read_new_messages(self) -> None:
        while self.head < self.partition.next_offset:
            if not self.ledgers:
                self.head = self.partition.next_offset
                return
            batches = await self.partition.read(self.head, READ_BYTES)
            if isinstance(batches, list):
                for batch in batches:
                    self._offer(batch)
            elif isinstance(batches, Gone):
                self.head = batches.earliest
            else:
                # All remaining messages are deleted.
                self.head = batches.next_offset

    def _offer(self, batch: Batch) -> None:
        batch = batch.starting_at(Offset(self.head))
        by_offset = priorities(batch)
        for offset, priority in by_offset.items():
            self._priorities[offset] = priority
        needs_keys = by_offset or batch.positions is not None
        keys = job_keys(batch, by_offset) if needs_keys else None
        for number, ledger in self.ledgers.items():
            if keys is None:
                ledger.offer(batch.first_offset, batch.next_offset)
            else:
                ledger.offer_each(keys, batch.next_offset)
            if not self._restoring.locked():
                self._ready(number)
        self.head = batch.next_offset
        self._since_messages += batch.messages

    # -- storing and restoring

    async def _restore(self) -> None:
        """Replace the ledgers by what the log has; entries that are not durable are lost."""
        async with self._restoring:
            settled = await self.opened.settlements.read(KIND)
            entries = [job_records.decode(plain) for frame in settled for plain in frame.entries]
            numbers = [n for n, entry in enumerate(entries) if isinstance(entry, JobSnapshot)]
            last = numbers[-1] if numbers else -1
            snapshot = entries[last] if numbers else JobSnapshot(0, {}, {})
            assert isinstance(snapshot, JobSnapshot)
            self._priorities = Column("u4", snapshot.priorities)
            self._deletions = -1
            self._entries = []
            floors = {} if entries else await self._floors.load()
            self.ledgers = {
                endpoint.number: self._restored_ledger(endpoint, snapshot, floors)
                for endpoint in self._endpoints
            }
            self.head = min((x.head for x in self.ledgers.values()), default=snapshot.head)
            await self._read_all_messages()
            for entry in entries[last + 1 :]:
                _apply(entry, self.ledgers)

    def _restored_ledger(
        self, endpoint: Endpoint, snapshot: JobSnapshot, floors: Mapping[int, int]
    ) -> JobLedger:
        number = endpoint.number
        state = snapshot.ledgers.get(number)
        if state is None:
            return self._new_ledger(endpoint, floors.get(number, 0))
        return JobLedger.restored(number, state, self._rules, self._priorities)

    def _new_ledger(self, endpoint: Endpoint, floor: int = 0) -> JobLedger:
        same_topic = endpoint.topic_uid == self.opened.topic.unique
        start = max(endpoint.start_offset if same_topic else 0, floor)
        return JobLedger(endpoint.number, start, self._rules, self._priorities)

    async def _read_all_messages(self) -> None:
        """Create the jobs for all messages; skips damaged ones."""
        while True:
            try:
                async with self._advancing:
                    return await self._read_new_messages()
            except DataDamaged as error:
                self.head = error.next

    def _collect_entries(self) -> SettlementFrame:
        self._set_timer()
        entries, self._entries = self._entries, []
        body = job_records.encode(entries)
        return SettlementFrame(body, len(entries), partial(self._entries_written, len(body)))

    def _entries_written(self, size_bytes: int, error: BaseException | None) -> None:
        if error is not None:
            self._warn("jobs_not_stored", error)
            self._entries = []
            self._writer.reject(error)
            self._tasks.start(self._recover())
            return
        self._since_bytes += size_bytes
        if self._since_bytes > max(self._snapshot_bytes_min, 2 * self._snapshot_bytes):
            self._tasks.start(self._write_snapshot())
        elif self._floors.due:
            self._tasks.start(self._floors.save(self.ledgers))

    async def _recover(self) -> None:
        """Restore the ledgers after entries could not be stored."""
        if self.opened.closed or self._restoring.locked():
            return
        try:
            await self._restore()
        except PenstockError as error:
            self._warn("jobs_not_restored", error)
        self.tick()

    async def _write_snapshot(self) -> None:
        """Write all ledgers in one frame; earlier frames are then no longer needed."""
        if self._restoring.locked():
            return
        self._since_bytes = self._since_messages = 0
        ledgers = {number: ledger.state() for number, ledger in self.ledgers.items()}
        floor = min((ledger.floor() for ledger in self.ledgers.values()), default=self.head)
        self._priorities.trim(floor, set())
        body = job_records.encode([JobSnapshot(self.head, self._priorities.state(), ledgers)])
        frame = self.opened.durable_frame
        try:
            await self.opened.settle_when_possible(body, 1)
        except PenstockError as error:
            self._warn("jobs_not_stored", error)
            return
        self._snapshot_bytes = len(body)
        self.opened.settlements.keep(KIND, frame)
        await self._floors.save(self.ledgers)

    def _warn(self, event: str, error: BaseException) -> None:
        _events.warning(event, topic=str(self.opened.topic.name), reason=str(error))


def _apply(entry: Entry, ledgers: Mapping[int, JobLedger]) -> None:
    """Apply an entry of the log to the ledger of its endpoint, if that still exists."""
    ledger = None if isinstance(entry, JobSnapshot) else ledgers.get(entry.endpoint)
    if ledger is not None and isinstance(entry, Change):
        ledger.apply(entry)
    elif ledger is not None and isinstance(entry, Start):
        ledger.move_start(entry)
