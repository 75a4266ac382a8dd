"""How far subscriptions are: recorded in memory at once, saved in the metadata store now and then.

Delivery calls `record`, which writes to a dict. One task saves what moved, by interval and by
distance; a forced flush takes its turn with that task, so that one writer is at work at a time. A
save is a transaction that compares the key's last revision and the guard of the epoch under which
the subscription was started here: a position never goes back, and a deposed owner's is refused.
What is lost in a crash is at most what was recorded since the last save; it is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec
import structlog

from penstock.host.clock import Clock
from penstock.metadata.interface import (
    Compare,
    Delete,
    Entry,
    Metadata,
    Put,
    Revision,
    Target,
)
from penstock.metadata.keys import Keys
from penstock.metadata.ownership import NotOwner
from penstock.metadata.positions import Positions, Subscription
from penstock.model.errors import FormatError, PenstockError
from penstock.model.names import TopicName
from penstock.model.units import Microseconds, Offset

SAVES_MAX: Final = 64
"""Saves under way at once."""
CONFLICTS_MAX: Final = 8
"""Attempts of one save when somebody else writes the key."""
CLOSE_ATTEMPTS: Final = 3
CLOSE_PAUSE_SECONDS: Final = 0.5

_logger = structlog.get_logger(__name__)


class Progress(msgspec.Struct, frozen=True):
    """The value of a progress key: the next offset, and when it was saved, in µs since 1970."""

    offset: int
    timestamp: int


@dataclass(slots=True)
class _Saved:
    """What is needed to save the next position."""

    key: str
    guard: Compare
    mod_revision: Revision


class _Result(Enum):
    SAVED = "saved"
    UNAVAILABLE = "unavailable"
    DEPOSED = "deposed"


class ProgressUpdater:
    """The positions of all subscriptions this broker serves."""

    def __init__(
        self,
        store: Metadata,
        keys: Keys,
        guard: Callable[[TopicName], Compare],
        flush_interval_seconds: float = 5.0,
        min_offset_delta: int = 1000,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._guard = guard
        self._clock = clock or Clock()
        self._positions = Positions(
            flush_interval_seconds, min_offset_delta, self._clock.monotonic_ns()
        )
        self._subscriptions: dict[Subscription, _Saved] = {}
        self._lost: list[tuple[Subscription, _Saved, Offset]] = []
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def start(self, subscription: Subscription, offset: Offset) -> Offset:
        """Where to deliver from: the saved position, or `offset` for a new subscription.

        That is durable on return, so deliver nothing before; one that runs already goes on where
        it is. Raises NotOwner, MetadataUnavailable.
        """
        guard = self._guard(subscription.topic)
        known = self._subscriptions.get(subscription)
        if known is not None and known.guard == guard:
            return self._positions.recorded(subscription)
        key = self._keys.progress(*subscription)
        entry = await self._store.get(key)
        if entry is None:
            new = [guard, Compare(key, Target.VERSION, 0)]
            outcome = await self._store.transaction(new, [Put(key, self._value(offset))])
            if outcome.succeeded:
                return self._begin(subscription, _Saved(key, guard, outcome.revision), offset)
            entry = await self._store.get(key)
        if entry is None:
            raise NotOwner(subscription.topic)
        saved = _Saved(key, guard, entry.mod_revision)
        return self._begin(subscription, saved, decode(entry).offset)

    def record(self, subscription: Subscription, offset: Offset) -> None:
        """Everything before `offset` is settled; never blocks, and never goes back."""
        if self._positions.record(subscription, offset):
            self._wake.set()

    def floor(self, subscription: Subscription) -> Offset | None:
        """The position known to be in the store; None if it was not started here."""
        return self._positions.saved(subscription)

    async def flush(self, topic: TopicName | None = None) -> bool:
        """Save all that moved, of one topic or of all, now; whether everything was saved."""
        async with self._turn:
            await self._save_lost()
            return await self._save_all(self._positions.unsaved(topic))

    async def leave(self, topic: TopicName) -> None:
        """Before ownership is released: save, then forget the topic's subscriptions."""
        await self.flush(topic)
        self._forget_topic(topic)

    def lost(self, topic: TopicName) -> None:
        """Ownership is lost: forget the topic; what moved gets one last attempt, soon.

        If the store knows of the loss it refuses that, as it must.
        """
        for subscription, offset in self._positions.unsaved(topic).items():
            self._lost.append((subscription, self._subscriptions[subscription], offset))
        self._forget_topic(topic)
        self._wake.set()

    async def remove(self, subscription: Subscription) -> None:
        """The subscription is deleted; raises NotOwner, MetadataUnavailable."""
        async with self._turn:
            self._forget(subscription)
            key = self._keys.progress(*subscription)
            guard = self._guard(subscription.topic)
            if not (await self._store.transaction([guard], [Delete(key)])).succeeded:
                raise NotOwner(subscription.topic)

    async def close(self) -> None:
        """Save everything, if the store answers in a few attempts."""
        self._task.cancel()
        await asyncio.wait([self._task])
        for attempt in range(CLOSE_ATTEMPTS):
            if attempt:
                await asyncio.sleep(CLOSE_PAUSE_SECONDS)
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

    async def _save_all(self, positions: Mapping[Subscription, Offset]) -> bool:
        return await self._save_each(
            [
                (subscription, self._subscriptions[subscription], offset)
                for subscription, offset in positions.items()
            ]
        )

    async def _save_each(self, items: Sequence[tuple[Subscription, _Saved, Offset]]) -> bool:
        waiting = iter(items)
        results: list[_Result] = []

        async def save_some() -> None:
            results.extend([await self._save(*item) for item in waiting])

        async with asyncio.TaskGroup() as savers:
            for _ in range(min(SAVES_MAX, len(items))):
                savers.create_task(save_some())
        return all(result is _Result.SAVED for result in results)

    async def _save(self, subscription: Subscription, saved: _Saved, offset: Offset) -> _Result:
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
            # Unless it was started anew meanwhile, under a later epoch.
            if self._subscriptions.get(subscription) is saved:
                self._forget(subscription)
        return result

    async def _swap(self, subscription: Subscription, saved: _Saved, offset: Offset) -> _Result:
        """Write `offset` if the key has less; what the key has is known afterwards."""
        for _ in range(CONFLICTS_MAX):
            unchanged = Compare(saved.key, Target.MOD_REVISION, saved.mod_revision)
            put = Put(saved.key, self._value(offset))
            outcome = await self._store.transaction([saved.guard, unchanged], [put])
            if outcome.succeeded:
                saved.mod_revision = outcome.revision
                self._positions.was_saved(subscription, offset)
                return _Result.SAVED
            entry = await self._store.get(saved.key)
            mod_revision = Revision(0) if entry is None else entry.mod_revision
            if mod_revision == saved.mod_revision:
                # The key is as we believed, so it was the guard that did not hold.
                return _Result.DEPOSED
            saved.mod_revision = mod_revision
            # It may well be our own earlier write that was not answered.
            if entry is not None and (stored := decode(entry).offset) >= offset:
                self._positions.was_saved(subscription, Offset(stored))
                return _Result.SAVED
        return _Result.UNAVAILABLE

    def _begin(self, subscription: Subscription, saved: _Saved, offset: int) -> Offset:
        self._subscriptions[subscription] = saved
        self._positions.begin(subscription, Offset(offset))
        return Offset(offset)

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        self._positions.forget(subscription)

    def _forget_topic(self, topic: TopicName) -> None:
        for subscription in [item for item in self._subscriptions if item.topic == topic]:
            self._forget(subscription)

    def _value(self, offset: Offset) -> bytes:
        now: Microseconds = self._clock.now_us()
        return msgspec.json.encode(Progress(offset, now))


def decode(entry: Entry) -> Progress:
    """The value of a progress key; raises FormatError."""
    try:
        return msgspec.json.decode(entry.value, type=Progress)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{entry.key} is not a position: {error}") from error
