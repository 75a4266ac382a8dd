"""The jobs of one channel: ledgers over its log.

    commits of the log -> offer to every ledger        requests, deliveries, time -> entries
    entries of a turn -> one settle frame -> durable -> whoever waits is answered

After a restart: the last snapshot, jobs for the messages since, then the entries since. Where the
log refuses entries that were applied already, the ledgers are made anew from what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from pyroaring import BitMap64

from penstock.delivery.channels.messages import JobMessage, keys_of, priorities
from penstock.delivery.channels.window import Window
from penstock.host.clock import Clock
from penstock.ledger import job_records
from penstock.ledger.job_column import Column
from penstock.ledger.job_records import KIND, Change, Entry, Snapshot, Start
from penstock.ledger.job_states import JobRules
from penstock.ledger.jobs import JobLedger
from penstock.metadata.channel_records import Consumer
from penstock.metadata.job_floors import JobFloors
from penstock.model.batch import Batch, Gone
from penstock.model.errors import DataDamaged, LogClosed, PenstockError
from penstock.model.units import ONLY_PARTITION, Offset
from penstock.topics import OpenTopic, Source, TopicPartition

READ_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 1.0
FLOORS_SECONDS: Final = 5.0
"""Floors are saved no more often than this while jobs change."""
TIMER_SECONDS: Final = 0.001
"""A timer may be that much early."""
SNAPSHOT_BYTES_MIN: Final = 1 << 20
SNAPSHOT_MESSAGES: Final = 100_000
"""A snapshot follows so many bytes of entries, or messages without a job's state on disk."""

_events = structlog.get_logger(__name__)


class ChannelJobs:
    """One ledger for each consumer of a channel; `ready` is told whose jobs may be taken."""

    def __init__(
        self,
        opened: OpenTopic,
        source: Source,
        rules: JobRules,
        ready: Callable[[int], None],
        clock: Clock,
        floors: JobFloors,
    ) -> None:
        self.opened, self.partition = opened, opened.partition(ONLY_PARTITION)
        self._floors = floors
        self._floors_saved: dict[int, int] = {}
        self._floors_at = 0.0
        self.ledgers: dict[int, JobLedger] = {}
        self.head = 0
        """Messages before it have their jobs."""
        self._source, self._rules, self._ready, self._clock = source, rules, ready, clock
        self._place = TopicPartition(opened.topic, None)
        self._window = Window(opened, source)
        self._consumers: list[Consumer] = []
        self._priorities = Column("u4")
        self._entries: list[Entry] = []
        self._settled: asyncio.Future[None] | None = None
        self._last: asyncio.Future[None] | None = None
        self._saves: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._follower: asyncio.Task[None] | None = None
        self._restoring = asyncio.Lock()
        self._advancing = asyncio.Lock()
        self._since_bytes = self._since_messages = self._snapshot_bytes = 0
        self._deletions = -1
        """How many deletions of the log the ledgers know of; -1: not even those before them."""

    # -- life

    async def open(self, consumers: Iterable[Consumer]) -> None:
        """Bring the jobs to where they were, then follow the log."""
        self._consumers = list(consumers)
        await self._restore()
        self.tick()
        self._clock.jumps.watch(self._arm)
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stop; what is known is kept, so that the next start has little to do."""
        tasks = [task for task in (self._follower, *self._saves) if task is not None]
        if self._follower is not None:
            self._follower.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._stop_timer()
        if self._since_bytes or self._since_messages:
            await self._snapshot()
        await self._save_floors()

    @property
    def writable(self) -> bool:
        """Whether what happens to jobs now can be kept."""
        return self.opened.writable

    def stop(self) -> None:
        """The topic is not served here any more: do nothing more with it."""
        if self._follower is not None:
            self._follower.cancel()
        self._stop_timer()
        self.ledgers.clear()

    def add(self, consumer: Consumer) -> None:
        """A consumer is there, or has changed."""
        self._consumers = [c for c in self._consumers if c.number != consumer.number] + [consumer]
        if consumer.number not in self.ledgers:
            ledger = self.ledgers[consumer.number] = self._begun(consumer)
            self._deletions = -1
            # Messages may have come since it was decided where it begins.
            self.head = min(self.head, ledger.head)
            self.partition.wake()

    def remove(self, number: int) -> None:
        """A consumer is gone, and its jobs with it."""
        self._consumers = [c for c in self._consumers if c.number != number]
        self.ledgers.pop(number, None)

    # -- what happens to jobs

    def now_us(self) -> int:
        return self._clock.now_us()

    def keep(self, *entries: Entry) -> asyncio.Future[None]:
        """Entries that were applied: done when they, and all before them, are durable."""
        self._entries += entries
        if self._settled is None:
            self._settled = self._last = asyncio.get_running_loop().create_future()
            self._settled.add_done_callback(_looked_at)
            task = asyncio.get_running_loop().create_task(self._save())
            self._saves.add(task)
            task.add_done_callback(self._saves.discard)
        return self._settled

    async def durable(self) -> None:
        """Wait until everything that was kept so far is durable."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def catch_up(self) -> None:
        """Make the jobs for everything that is durable now: who was told of a message sees them."""
        if self._restoring.locked():
            async with self._restoring:
                pass
        if self.head < self.partition.next_offset:
            await self._advance()
        self.forget_deleted()

    def forget_deleted(self) -> None:
        """Jobs go with their messages: those that retention dropped or somebody deleted."""
        if self._deletions == self.opened.deletions or self._restoring.locked():
            return
        self._deletions = self.opened.deletions
        deleted = self.partition.deleted
        for ledger in self.ledgers.values():
            ledger.lose(self.partition.start_offset, BitMap64() if deleted is None else deleted)

    async def message(self, offset: int) -> JobMessage | None:
        """A message; None if it is gone."""
        return await self._window.message(offset)

    def tick(self) -> None:
        """Let time pass for all jobs; while nothing can be kept, look again later."""
        if self._restoring.locked():
            return
        if not self.writable:
            self._wake_in(RETRY_SECONDS)
            return
        self.forget_deleted()
        now = self._clock.now_us()
        for number, ledger in self.ledgers.items():
            expired = ledger.tick(now)
            if expired:
                self.keep(*expired)
            if ledger.ready:
                self._ready(number)
        self._arm()

    # -- details: following the log

    async def _follow(self) -> None:
        while True:
            try:
                with self.partition.arrival() as arrival:
                    await self._advance()
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
                _events.warning(
                    "jobs_not_made", topic=str(self.opened.topic.name), reason=str(error)
                )
                await asyncio.sleep(RETRY_SECONDS)

    async def _advance(self) -> None:
        """Make the jobs for all messages that are there."""
        async with self._advancing:
            await self._read_on()
        if self._since_messages >= SNAPSHOT_MESSAGES:
            await self._snapshot()

    async def _read_on(self) -> None:
        while self.head < self.partition.next_offset:
            if not self.ledgers:
                self.head = self.partition.next_offset
                return
            answer = await self._source.read(self._place, Offset(self.head), READ_BYTES)
            if isinstance(answer, Gone):
                self.head = answer.earliest
                continue
            if not isinstance(answer, list):
                # Deleted up to the head.
                self.head = answer.next_offset
                continue
            for batch in answer:
                self._offer(batch)

    def _offer(self, batch: Batch) -> None:
        batch = batch.starting_at(Offset(self.head))
        given = priorities(batch)
        for offset, priority in given.items():
            self._priorities[offset] = priority
        keys = keys_of(batch, given) if given or batch.positions is not None else None
        for number, ledger in self.ledgers.items():
            if keys is None:
                ledger.offer(batch.first_offset, batch.next_offset)
            else:
                ledger.offer_each(keys, batch.next_offset)
            if not self._restoring.locked():
                self._ready(number)
        self.head = batch.next_offset
        self._since_messages += batch.messages

    # -- details: what is kept

    async def _restore(self) -> None:
        """Ledgers as the log tells them; whoever waits for entries that are not there is told."""
        async with self._restoring:
            settled = await self.opened.settlements.read(KIND)
            entries = [job_records.decode(plain) for one in settled for plain in one.entries]
            last = max((n for n, e in enumerate(entries) if isinstance(e, Snapshot)), default=-1)
            snapshot = entries[last] if last >= 0 else Snapshot(0, {}, {})
            assert isinstance(snapshot, Snapshot)
            self._priorities = Column("u4", snapshot.priorities)
            self.ledgers = {}
            self._deletions = -1
            self._entries = []
            floors = {} if entries else await self._floors.load(self.opened.topic.name)
            for consumer in self._consumers:
                kept = snapshot.ledgers.get(consumer.number)
                rules, number = self._rules, consumer.number
                self.ledgers[number] = (
                    self._begun(consumer, floors.get(number, 0))
                    if kept is None
                    else JobLedger.restored(number, kept, rules, self._priorities)
                )
            self.head = min((x.head for x in self.ledgers.values()), default=snapshot.head)
            await self._read_all()
            for entry in entries[last + 1 :]:
                self._apply(entry)

    async def _read_all(self) -> None:
        while True:
            try:
                async with self._advancing:
                    return await self._read_on()
            except DataDamaged as error:
                self.head = error.next

    def _begun(self, consumer: Consumer, floor: int = 0) -> JobLedger:
        start = consumer.start if consumer.topic == self.opened.topic.unique else 0
        return JobLedger(consumer.number, max(start, floor), self._rules, self._priorities)

    def _apply(self, entry: Entry) -> None:
        if isinstance(entry, Snapshot):
            return
        ledger = self.ledgers.get(entry.consumer)
        if ledger is not None and isinstance(entry, Change):
            ledger.apply(entry)
        elif ledger is not None and isinstance(entry, Start):
            ledger.begin(entry)

    async def _save(self) -> None:
        """Entries of this turn, as one frame; those that come meanwhile make the next one."""
        await asyncio.sleep(0)
        self._arm()
        entries, self._entries = self._entries, []
        settled, self._settled = self._settled, None
        assert settled is not None
        try:
            body = job_records.encode(entries)
            await self.opened.settle_when_possible(body, len(entries))
        except PenstockError as error:
            if not settled.done():
                settled.set_exception(error)
            _events.warning("jobs_not_kept", topic=str(self.opened.topic.name), reason=str(error))
            await self._recover()
            return
        if not settled.done():
            settled.set_result(None)
        self._since_bytes += len(body)
        if self._since_bytes > max(SNAPSHOT_BYTES_MIN, 2 * self._snapshot_bytes):
            await self._snapshot()
        elif asyncio.get_running_loop().time() > self._floors_at + FLOORS_SECONDS:
            await self._save_floors()

    async def _recover(self) -> None:
        """Go back to what the log has; nothing is begun before it takes entries again."""
        if self.opened.closed or self._restoring.locked():
            return
        try:
            await self._restore()
        except PenstockError as error:
            _events.warning(
                "jobs_not_restored", topic=str(self.opened.topic.name), reason=str(error)
            )
        self.tick()

    async def _save_floors(self) -> None:
        self._floors_at = asyncio.get_running_loop().time()
        floors = {number: ledger.floor() for number, ledger in self.ledgers.items()}
        if floors == self._floors_saved:
            return
        try:
            await self._floors.save(self.opened.topic.name, floors)
            self._floors_saved = floors
        except PenstockError as error:
            _events.warning(
                "job_floors_not_saved", topic=str(self.opened.topic.name), reason=str(error)
            )

    async def _snapshot(self) -> None:
        """Keep everything in one frame; what was kept before it is not needed any more."""
        if self._restoring.locked():
            return
        self._since_bytes = self._since_messages = 0
        ledgers = {number: ledger.state() for number, ledger in self.ledgers.items()}
        floor = min((ledger.floor() for ledger in self.ledgers.values()), default=self.head)
        self._priorities.trim(floor, set())
        body = job_records.encode([Snapshot(self.head, self._priorities.state(), ledgers)])
        frame = self.opened.durable_frame
        try:
            await self.opened.settle_when_possible(body, 1)
        except PenstockError as error:
            _events.warning("jobs_not_kept", topic=str(self.opened.topic.name), reason=str(error))
            return
        self._snapshot_bytes = len(body)
        self.opened.settlements.keep(KIND, frame)
        await self._save_floors()

    def _arm(self) -> None:
        """Wake up when the next wait or flight is over."""
        times = (ledger.next_us() for ledger in self.ledgers.values())
        due = min((time for time in times if time is not None), default=None)
        if due is not None:
            self._wake_in(max(due - self._clock.now_us(), 0) / 1e6 + TIMER_SECONDS)
        elif self._timer is not None:
            self._timer.cancel()

    def _stop_timer(self) -> None:
        self._clock.jumps.unwatch(self._arm)
        if self._timer is not None:
            self._timer.cancel()

    def _wake_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.tick)


def _looked_at(future: asyncio.Future[None]) -> None:
    """A failure that nobody waits for has been told in the broker's own log."""
    if not future.cancelled():
        future.exception()
