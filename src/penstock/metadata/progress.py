"""Positions of subscriptions: recorded in memory at once, saved in the metadata store periodically.

Delivery calls `record`, which writes to a dict. One task saves the positions that have moved, by
interval and by distance; a forced flush excludes that task, so that there is one writer at a time.
A save is a transaction that compares the key's last revision and the guard of the epoch under which
this broker started the subscription: a position never moves back, and the store refuses a save of a
deposed owner. A crash loses at most the positions recorded since the last save, so that messages
after them are delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import msgspec
import structlog

from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    Metadata,
    MetadataEntry,
    Put,
    Revision,
)
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.ownership.ownership import NotOwner
from penstock.model.errors import FormatError, PenstockError
from penstock.model.names import TopicName
from penstock.model.units import Microseconds, Nanoseconds, Offset

SAVES_MAX: Final = 64
"""Limit of concurrent saves."""
CONFLICTS_MAX: Final = 8
"""Attempts of one save while another writer changes the key."""
CLOSE_ATTEMPTS: Final = 3
CLOSE_PAUSE_SECONDS: Final = 0.5
"""Pause between the attempts to save the last positions."""

_logger = structlog.get_logger(__name__)


class ProgressRecord(msgspec.Struct, frozen=True):
    """The value of a progress key: the next offset, and when it was saved, in µs since 1970."""

    offset: int
    timestamp: int


@dataclass(slots=True)
class _Saved:
    """The key of a subscription, and what the next save compares."""

    key: str
    guard: Compare
    mod_revision: Revision


class _Result(Enum):
    SAVED = "saved"
    UNAVAILABLE = "unavailable"
    DEPOSED = "deposed"


class ProgressUpdater:
    """Saves the positions of all subscriptions that this broker serves."""

    def __init__(
        self,
        store: Metadata,
        keys: MetadataKeys,
        guard: Callable[[TopicName], Compare],
        flush_interval_seconds: float = 5.0,
        min_offset_delta: int = 1000,
        clock: Clock | None = None,
        close_pause_seconds: float = CLOSE_PAUSE_SECONDS,
    ) -> None:
        self._store = store
        self._keys = keys
        self._guard = guard
        self._clock = clock or Clock()
        self._close_pause_seconds = close_pause_seconds
        self._positions = Positions(
            flush_interval_seconds, min_offset_delta, self._clock.monotonic_ns()
        )
        self._subscriptions: dict[SubscriptionId, _Saved] = {}
        self._lost: list[tuple[SubscriptionId, _Saved, Offset]] = []
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._tasks = Tasks()
        self._tasks.start(self._run())

    async def start(self, subscription: SubscriptionId, offset: Offset) -> Offset:
        """Returns the offset to deliver from: the saved position, or `offset` if there is none.

        The position is durable on return; deliver nothing before. A subscription that is started
        already keeps its position. Raises NotOwner, MetadataUnavailable.
        """
        guard = self._guard(subscription.topic)
        known = self._subscriptions.get(subscription)
        if known is not None and known.guard == guard:
            return self._positions.recorded(subscription)
        key = self._keys.progress(*subscription)
        entry = await self._store.get(key)
        if entry is None:
            new = [guard, Compare(key, CompareTarget.VERSION, 0)]
            outcome = await self._store.transaction(new, [Put(key, self._value(offset))])
            if outcome.succeeded:
                return self._begin(subscription, _Saved(key, guard, outcome.revision), offset)
            entry = await self._store.get(key)
        if entry is None:
            raise NotOwner(subscription.topic)
        saved = _Saved(key, guard, entry.mod_revision)
        return self._begin(subscription, saved, decode(entry).offset)

    def record(self, subscription: SubscriptionId, offset: Offset) -> None:
        """Record that all messages before `offset` are settled; never blocks, never moves back."""
        if self._positions.record(subscription, offset):
            self._wake.set()

    def floor(self, subscription: SubscriptionId) -> Offset | None:
        """The position that is in the store for certain; None if it was not started here."""
        return self._positions.saved(subscription)

    async def flush(self, topic: TopicName | None = None) -> bool:
        """Save now what has moved, of one topic or of all; returns whether all was saved."""
        async with self._turn:
            await self._save_lost()
            return await self._save_all(self._positions.unsaved(topic))

    async def leave(self, topic: TopicName) -> None:
        """Save and forget the topic's subscriptions; call it before ownership is released."""
        await self.flush(topic)
        self._forget_topic(topic)

    def lost(self, topic: TopicName) -> None:
        """Forget the subscriptions of a topic whose ownership is lost.

        One last attempt to save them follows soon; the store refuses it if there is another owner.
        """
        for subscription, offset in self._positions.unsaved(topic).items():
            self._lost.append((subscription, self._subscriptions[subscription], offset))
        self._forget_topic(topic)
        self._wake.set()

    async def remove(self, subscription: SubscriptionId) -> None:
        """Delete the position of a deleted subscription; raises NotOwner, MetadataUnavailable."""
        async with self._turn:
            self._forget(subscription)
            key = self._keys.progress(*subscription)
            guard = self._guard(subscription.topic)
            if not (await self._store.transaction([guard], [DeleteKeys(key)])).succeeded:
                raise NotOwner(subscription.topic)

    async def close(self) -> None:
        """Stop, and save everything if the store replies within a few attempts."""
        await self._tasks.cancel()
        for attempt in range(CLOSE_ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._close_pause_seconds)
            if await self.flush():
                return
        _logger.warning("progress_not_saved", subscriptions=len(self._positions.unsaved()))

    async def _run(self) -> None:
        while True:
            wait_seconds = self._positions.wait_seconds(self._clock.monotonic_ns())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            self._wake.clear()
            async with self._turn:
                await self._save_lost()
                await self._save_all(self._positions.due(self._clock.monotonic_ns()))

    async def _save_lost(self) -> None:
        lost, self._lost = self._lost, []
        await self._save_each(lost)

    async def _save_all(self, positions: Mapping[SubscriptionId, Offset]) -> bool:
        return await self._save_each(
            [
                (subscription, self._subscriptions[subscription], offset)
                for subscription, offset in positions.items()
            ]
        )

    async def _save_each(self, items: Sequence[tuple[SubscriptionId, _Saved, Offset]]) -> bool:
        waiting = iter(items)
        results: list[_Result] = []

        async def save_some() -> None:
            results.extend([await self._save(*item) for item in waiting])

        async with asyncio.TaskGroup() as save_group:
            for _ in range(min(SAVES_MAX, len(items))):
                save_group.create_task(save_some())
        return all(result is _Result.SAVED for result in results)

    async def _save(self, subscription: SubscriptionId, saved: _Saved, offset: Offset) -> _Result:
        name = str(subscription)
        try:
            result = await self._swap(subscription, saved, offset)
        except PenstockError as error:
            _logger.warning("progress_save_failed", subscription=name, reason=str(error))
            result = _Result.UNAVAILABLE
        if result is _Result.UNAVAILABLE:
            self._positions.failed(self._clock.monotonic_ns())
        elif result is _Result.DEPOSED:
            _logger.warning("progress_refused", subscription=name, offset=offset)
            # It may have been started again under a later epoch.
            if self._subscriptions.get(subscription) is saved:
                self._forget(subscription)
        return result

    async def _swap(self, subscription: SubscriptionId, saved: _Saved, offset: Offset) -> _Result:
        """Write `offset` unless the key has a later one; updates `saved` to what the key has."""
        for _ in range(CONFLICTS_MAX):
            unchanged = Compare(saved.key, CompareTarget.MOD_REVISION, saved.mod_revision)
            put = Put(saved.key, self._value(offset))
            outcome = await self._store.transaction([saved.guard, unchanged], [put])
            if outcome.succeeded:
                saved.mod_revision = outcome.revision
                self._positions.was_saved(subscription, offset)
                return _Result.SAVED
            entry = await self._store.get(saved.key)
            mod_revision = Revision(0) if entry is None else entry.mod_revision
            if mod_revision == saved.mod_revision:
                # The key is as expected, so it was the guard that did not hold.
                return _Result.DEPOSED
            saved.mod_revision = mod_revision
            # Possibly the result of an earlier write of this broker that was not answered.
            if entry is not None and (stored := decode(entry).offset) >= offset:
                self._positions.was_saved(subscription, Offset(stored))
                return _Result.SAVED
        return _Result.UNAVAILABLE

    def _begin(self, subscription: SubscriptionId, saved: _Saved, offset: int) -> Offset:
        self._subscriptions[subscription] = saved
        self._positions.begin(subscription, Offset(offset))
        return Offset(offset)

    def _forget(self, subscription: SubscriptionId) -> None:
        self._subscriptions.pop(subscription, None)
        self._positions.forget(subscription)

    def _forget_topic(self, topic: TopicName) -> None:
        for subscription in [item for item in self._subscriptions if item.topic == topic]:
            self._forget(subscription)

    def _value(self, offset: Offset) -> bytes:
        now: Microseconds = self._clock.now_us()
        return msgspec.json.encode(ProgressRecord(offset, now))


def decode(entry: MetadataEntry) -> ProgressRecord:
    """Decode the value of a progress key; raises FormatError."""
    try:
        return msgspec.json.decode(entry.value, type=ProgressRecord)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{entry.key} is not a position: {error}") from error


PAUSE_NS: Final = 100_000_000

_SECOND_NS: Final = 1_000_000_000


class SubscriptionId(NamedTuple):
    """Identifies a subscription: its topic, and its name within the topic."""

    topic: TopicName
    name: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


class Positions:
    """The positions of subscriptions in memory; decides which to save, and when, without I/O.

    All positions that have moved are saved at every interval, and a position that has moved by
    `delta` offsets at once. After a failure all saves wait for a pause, which doubles up to the
    interval.
    """

    def __init__(self, interval_seconds: float, delta: int, now_ns: Nanoseconds) -> None:
        self._interval_ns = int(interval_seconds * _SECOND_NS)
        self._delta = delta
        self._recorded: dict[SubscriptionId, Offset] = {}
        self._saved: dict[SubscriptionId, Offset] = {}
        self._far: set[SubscriptionId] = set()
        self._interval_ends_ns = now_ns + self._interval_ns
        self._pause_ns = self._pause_ends_ns = 0

    def begin(self, subscription: SubscriptionId, saved: Offset) -> None:
        """Add a subscription with its saved position."""
        self._recorded[subscription] = self._saved[subscription] = saved

    def forget(self, subscription: SubscriptionId) -> None:
        self._recorded.pop(subscription, None)
        self._saved.pop(subscription, None)
        self._far.discard(subscription)

    def record(self, subscription: SubscriptionId, offset: Offset) -> bool:
        """Record a position; returns True if it is to be saved before the interval ends.

        An earlier position, or one of an unknown subscription, changes nothing.
        """
        before = self._recorded.get(subscription)
        if before is None or offset <= before:
            return False
        self._recorded[subscription] = offset
        if offset - self._saved[subscription] < self._delta or subscription in self._far:
            return False
        self._far.add(subscription)
        return True

    def recorded(self, subscription: SubscriptionId) -> Offset:
        return self._recorded[subscription]

    def saved(self, subscription: SubscriptionId) -> Offset | None:
        """The position that is in the store for certain."""
        return self._saved.get(subscription)

    def unsaved(self, topic: TopicName | None = None) -> dict[SubscriptionId, Offset]:
        """The positions that moved since they were saved, of one topic or of all."""
        return {
            subscription: offset
            for subscription, offset in self._recorded.items()
            if offset > self._saved[subscription] and topic in (None, subscription.topic)
        }

    def due(self, now_ns: Nanoseconds) -> dict[SubscriptionId, Offset]:
        """The positions to save now."""
        if now_ns < self._pause_ends_ns:
            return {}
        if now_ns >= self._interval_ends_ns:
            self._interval_ends_ns = now_ns + self._interval_ns
            return self.unsaved()
        return {subscription: self._recorded[subscription] for subscription in self._far}

    def wait_seconds(self, now_ns: Nanoseconds) -> float:
        """After how many seconds to call `due` again, unless `record` returns True before."""
        soonest_ns = now_ns if self._far else self._interval_ends_ns
        return max(0, max(soonest_ns, self._pause_ends_ns) - now_ns) / _SECOND_NS

    def was_saved(self, subscription: SubscriptionId, offset: Offset) -> None:
        """Note that the store has this position or a later one."""
        self._pause_ns = self._pause_ends_ns = 0
        if subscription not in self._recorded:
            return
        saved = self._saved[subscription] = max(offset, self._saved[subscription])
        self._recorded[subscription] = max(saved, self._recorded[subscription])
        if self._recorded[subscription] - saved < self._delta:
            self._far.discard(subscription)

    def failed(self, now_ns: Nanoseconds) -> None:
        """Note that a save failed; later ones wait for a pause."""
        if now_ns >= self._pause_ends_ns:
            self._pause_ns = min(max(PAUSE_NS, 2 * self._pause_ns), self._interval_ns)
            self._pause_ends_ns = now_ns + self._pause_ns
            # Unsaved positions are due again when the pause is over.
            self._interval_ends_ns = min(self._interval_ends_ns, self._pause_ends_ns)
