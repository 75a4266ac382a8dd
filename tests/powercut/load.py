"""Publishers, readers and people who delete, all at once, until they are stopped.

Each says what it is about to do, does it, and says when it is acknowledged. After a cut they go on
against a dead disk: an acknowledgement given then would be a lie that the history finds.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, Final

from penstock.log import Log
from penstock.model import names
from penstock.model.errors import PenstockError
from penstock.model.run import Run
from penstock.model.units import Offset, OffsetRange, PartitionId
from tests.log_reader import LogReader
from tests.powercut import facts
from tests.powercut.facts import Place, Tell
from tests.powercut.orders import Orders, TopicOrders
from tests.powercut.payload import payload, subject
from tests.powercut.storages import Stored
from tests.powercut.switch import Switch
from tests.powercut.view import identified

CYCLE_NUMBERS: Final = 1_000_000
"""Publishers and operations of one cycle are numbered from a multiple of this."""

FOLLOWED_MAX: Final = 4
KEPT_MAX: Final = 1000
RECENT_OFFSETS: Final = 100
RUNS_AT_ONCE: Final = 3
PAUSE_SECONDS: Final = 0.005


class Load:
    """Everybody who uses the logs in one cycle."""

    def __init__(self, storage: Stored, orders: Orders, tell: Tell, switch: Switch) -> None:
        self._storage = storage
        self._orders = orders
        self._tell = tell
        self._switch = switch
        self._random = Random(orders.seed)
        self._numbers = count(orders.cycle * CYCLE_NUMBERS)
        self._places: list[tuple[Log, PartitionId]] = []
        self._purged = {topic.name for topic in orders.topics if topic.purged}
        self._settled = {topic.name for topic in orders.topics if topic.settled}
        self._recent: defaultdict[Place, deque[int]] = defaultdict(
            lambda: deque(maxlen=RECENT_OFFSETS)
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; what is under way then is given up, as by a client that goes away."""
        try:
            await self._begin()
        except (PenstockError, OSError):
            if not self._switch.pressed:
                raise
        async with asyncio.TaskGroup() as users:
            tasks = [users.create_task(user) for user in self._users()]
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def _begin(self) -> None:
        """Every topic is there, and every partition takes a message."""
        topics = self._orders.topics
        logs = await asyncio.gather(*map(self._found_or_made, topics))
        for topic, log in zip(topics, logs, strict=True):
            self._places += [(log, PartitionId(number)) for number in range(topic.partitions)]
        publisher = next(self._numbers)
        first_words = [
            self._append(self._random, publisher, number, 1, *place)
            for number, place in enumerate(self._places)
        ]
        await asyncio.gather(*first_words)
        self._tell(facts.Writing())

    async def _found_or_made(self, topic: TopicOrders) -> Log:
        found = self._storage.logs.get(names.topic(topic.name))
        return found or await self._create(topic.name, topic.cloud)

    def _users(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._make_topics()
        if self._places:
            for _ in range(self._orders.publishers):
                yield self._publish(next(self._numbers))
        # A sync for anybody makes a new name durable too, so nobody else is about.
        if self._places and self._orders.cut_at_new_topic is None:
            for log, partition in self._places[:FOLLOWED_MAX]:
                yield self._follow(log, partition)
            for habit in (self._delete, self._purge, self._settle, self._rotate):
                yield self._again_and_again(habit)

    async def _publish(self, publisher: int) -> None:
        random = Random(f"{self._orders.seed}-{publisher}")
        under_way: deque[asyncio.Future[OffsetRange]] = deque()
        number = 0
        while True:
            log, partition = random.choice(self._places)
            messages = random.randint(1, self._orders.messages_max)
            try:
                under_way.append(self._append(random, publisher, number, messages, log, partition))
            except PenstockError:
                await asyncio.sleep(PAUSE_SECONDS)
            number += messages
            if len(under_way) >= random.randint(1, RUNS_AT_ONCE):
                await asyncio.wait([under_way.popleft()])

    def _append(
        self,
        random: Random,
        publisher: int,
        first: int,
        messages: int,
        log: Log,
        partition: PartitionId,
    ) -> asyncio.Future[OffsetRange]:
        ids = [(publisher, first + position) for position in range(messages)]
        sizes = [int(random.random() ** 4 * self._orders.payload_bytes_max) for _ in ids]
        payloads = [payload(id_, size) for id_, size in zip(ids, sizes, strict=True)]
        self._tell(facts.Sending(publisher, first, messages, log.topic, partition))
        future = log.append(Run(subject(ids[0]), payloads, partition=partition))

        def acknowledged(done: asyncio.Future[OffsetRange]) -> None:
            if not done.cancelled() and done.exception() is None:
                given = done.result()
                self._tell(facts.Acked(publisher, first, given.first))
                self._recent[log.topic, partition].extend(range(*given))

        future.add_done_callback(acknowledged)
        return future

    async def _follow(self, log: Log, partition: PartitionId) -> None:
        """Read along: what a reader has seen must stay, just as what a publisher was told."""
        while True:
            start, objects = log.start_offset(partition), self._storage.objects(log)
            reader = LogReader(log, partition, start, objects=objects)
            with suppress(PenstockError, OSError):
                async for batch in reader:
                    self._tell(identified(log.topic, batch)[0])
            await asyncio.sleep(PAUSE_SECONDS)

    async def _again_and_again(self, habit: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._random.random() * 0.05)
            with suppress(PenstockError, OSError):
                await habit()

    async def _delete(self) -> None:
        log, partition = self._random.choice(self._places)
        recent = self._recent[log.topic, partition]
        chosen = self._random.sample(list(recent), min(len(recent), self._random.randint(1, 20)))
        if chosen:
            number = next(self._numbers)
            self._tell(facts.Deleting(number, log.topic, partition, chosen))
            await log.delete(partition, chosen)
            self._tell(facts.Done(number))

    async def _purge(self) -> None:
        log, partition = self._random.choice(self._places)
        next_ = log.next_offset(partition)
        if log.topic in self._purged and next_ > 0:
            number = next(self._numbers)
            start = self._random.randint(max(1, next_ - KEPT_MAX), next_)
            self._tell(facts.Purging(number, log.topic, partition, start))
            await log.purge(partition, Offset(start))
            self._tell(facts.Done(number))

    async def _settle(self) -> None:
        log, _ = self._random.choice(self._places)
        if log.topic in self._settled:
            number = next(self._numbers)
            self._tell(facts.Settling(number, log.topic))
            await log.settle(b"%d" % number, 1)
            self._tell(facts.Done(number))

    async def _rotate(self) -> None:
        self._random.choice(self._places)[0].rotate()

    async def _make_topics(self) -> None:
        for made in range(self._orders.new_topics):
            await asyncio.sleep(self._random.random() * 0.05)
            with suppress(PenstockError, OSError):
                log = await self._create(f"default/default/new-{self._orders.cycle}-{made}")
                if made == self._orders.cut_at_new_topic:
                    self._switch.cut("after a topic was made")
                self._places.append((log, PartitionId(0)))

    async def _create(self, name: str, cloud: bool = False) -> Log:
        number = next(self._numbers)
        self._tell(facts.Creating(number, name, cloud))
        log = await self._storage.create(name, cloud)
        self._tell(facts.Done(number))
        return log
