"""Ownership of topics: one broker at a time, by lease, with a fencing token.

A broker has one lease and keeps it alive in a task. It owns a topic while the topic's owner key,
made by a transaction and bound to that lease, exists; the key's create revision is the *epoch*.
Holding a lease proves nothing by itself, since a broker can be stopped for longer than its lease
between looking and writing. Therefore:

- every write that only the owner may make carries `guard`, so that the store refuses it from a
  deposed owner;
- every ack asks `may_ack` with the epoch its messages were appended under, so that a broker that
  was stopped notices by its clock before it acknowledges anything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, NewType
from weakref import WeakValueDictionary

import structlog

from penstock.host.clock import Clock
from penstock.metadata.interface import (
    Compare,
    Delete,
    LeaseExpired,
    LeaseId,
    Metadata,
    Put,
    Target,
)
from penstock.metadata.keys import Keys
from penstock.metadata.requests import OPERATIONS_MAX
from penstock.metadata.tenure import Step, Tenure, Terms
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.units import Nanoseconds

Epoch = NewType("Epoch", int)
"""Ascends with every change of a topic's owner."""

LEASE_ENDED: Final = (
    "this broker's lease ended; the topic is served again, here or elsewhere, once the metadata "
    "store answers"
)
NOT_OURS: Final = "this broker does not own the topic any more; ask again"
"""Why a topic was lost, where no successor is known."""

CLOSE_SECONDS: Final = 5.0
"""How long `close` tries to give the topics back; after that they go with the lease."""

_logger = structlog.get_logger(__name__)


class NotOwner(PenstockError):
    """This broker does not own the topic, or not any more."""

    def __init__(self, topic: TopicName) -> None:
        super().__init__(f"this broker does not own topic {topic}")
        self.topic = topic


class Owner(NamedTuple):
    """Who owns a topic."""

    broker: str
    address: str
    epoch: Epoch


class _Lease(NamedTuple):
    id: LeaseId
    tenure: Tenure


class Ownership:
    """What one broker owns.

    `on_lost` is called once for a topic that was lost, not released, with the epoch and the reason.
    """

    def __init__(
        self,
        store: Metadata,
        keys: Keys,
        broker: str,
        address: str,
        on_lost: Callable[[TopicName, Epoch, str], None],
        terms: Terms | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._value = json.dumps({"broker": broker, "address": address}).encode()
        self._on_lost = on_lost
        self._terms = terms or Terms()
        self._clock = clock or Clock()
        self._lease: _Lease | None = None
        self._held: dict[TopicName, Epoch] = {}
        self._leaving: dict[TopicName, Epoch] = {}
        """Released, but the store has not said so: the key may go at any time."""
        self._turns: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Get a lease and keep it alive until `close`; raises MetadataUnavailable."""
        self._lease = await self._new_lease()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    @property
    def valid_until_ns(self) -> Nanoseconds:
        """On CLOCK_BOOTTIME: from here on nothing may be acknowledged; 0 without a lease."""
        return Nanoseconds(0) if self._lease is None else self._lease.tenure.valid_until_ns

    def may_ack(self, topic: TopicName, epoch: Epoch) -> bool:
        """Whether what was appended under `epoch` may be acknowledged now; ask right before."""
        if self._held.get(topic) != epoch:
            return False
        return self._clock.boottime_ns() < self.valid_until_ns

    def epoch(self, topic: TopicName) -> Epoch:
        """Raises NotOwner."""
        epoch = self._held.get(topic)
        if epoch is None:
            raise NotOwner(topic)
        return epoch

    def guard(self, topic: TopicName) -> Compare:
        """The comparison that every write of the topic's owner must carry; raises NotOwner."""
        return self._compare(topic, self.epoch(topic))

    async def acquire(self, topic: TopicName) -> Epoch | None:
        """Own the topic: its epoch, or None while somebody else owns it.

        Raises MetadataUnavailable; then the topic may be ours or not, and asking again tells.
        Raises LeaseExpired while this broker has no lease.
        """
        async with self._turn(topic):
            if topic in self._held:
                return self._held[topic]
            lease = self._lease
            if lease is None:
                raise LeaseExpired("this broker has no lease now")
            await self._give_back(topic)
            epoch = await self._take(topic, lease.id)
            if lease is not self._lease:
                raise LeaseExpired("the lease ended meanwhile")
            if epoch is not None:
                self._held[topic] = epoch
            return epoch

    async def release(self, topic: TopicName) -> None:
        """Give the topic back; acks stop at once.

        After MetadataUnavailable others may have to wait; releasing again, or acquiring, ends that.
        """
        async with self._turn(topic):
            epoch = self._held.pop(topic, None)
            if epoch is None and self._lease is not None:
                # An acquire without an answer may have left the key.
                epoch = await self._left_by(topic, self._lease.id)
            if epoch is not None:
                self._leaving[topic] = epoch
            await self._give_back(topic)

    async def verify(self) -> None:
        """Ask the store whether every topic is still ours; those that are not are lost.

        Done with every renewal. Raises MetadataUnavailable.
        """
        held = list(self._held.items())
        for start in range(0, len(held), OPERATIONS_MAX):
            await self._verify_some(held[start : start + OPERATIONS_MAX])

    def deposed(self, topic: TopicName, epoch: Epoch) -> None:
        """The store refused a write with the guard of this epoch: the topic is lost."""
        self._lose(topic, epoch, NOT_OURS)

    async def close(self) -> None:
        """Stop acking, then give everything back, if the store answers soon."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        lease, self._lease = self._lease, None
        self._held.clear()
        if lease is not None:
            await self._end(lease.id)

    def _turn(self, topic: TopicName) -> asyncio.Lock:
        """One acquire or release of a topic at a time."""
        lock = self._turns.get(topic)
        if lock is None:
            lock = self._turns[topic] = asyncio.Lock()
        return lock

    def _compare(self, topic: TopicName, epoch: Epoch) -> Compare:
        return Compare(self._keys.owner(topic), Target.CREATE_REVISION, epoch)

    async def _take(self, topic: TopicName, lease: LeaseId) -> Epoch | None:
        key = self._keys.owner(topic)
        absent = Compare(key, Target.CREATE_REVISION, 0)
        outcome = await self._store.transaction([absent], [Put(key, self._value, lease)])
        if outcome.succeeded:
            return Epoch(outcome.revision)
        return await self._left_by(topic, lease)

    async def _give_back(self, topic: TopicName) -> None:
        """Remove the key of an epoch that was released, and know that it is gone."""
        if topic in self._leaving:
            guard = self._compare(topic, self._leaving[topic])
            await self._store.transaction([guard], [Delete(self._keys.owner(topic))])
            del self._leaving[topic]

    async def _left_by(self, topic: TopicName, lease: LeaseId) -> Epoch | None:
        """The epoch of an owner key made with this lease, in a call that was not answered."""
        entry = await self._store.get(self._keys.owner(topic))
        return Epoch(entry.create_revision) if entry and entry.lease == lease else None

    async def _new_lease(self) -> _Lease:
        asked_ns = self._clock.boottime_ns()
        lease = await self._store.grant(self._terms.seconds)
        return _Lease(lease, Tenure(self._terms, asked_ns))

    async def _keep(self) -> None:
        """Renew the lease for as long as that works; then lose everything and begin anew."""
        while True:
            if self._lease is None:
                await self._begin_anew()
            elif not await self._renew_in_time(self._lease):
                await self._lose_all(self._lease)

    async def _renew_in_time(self, lease: _Lease) -> bool:
        """One step for the lease; False once it is over."""
        decision = lease.tenure.decide(self._clock.boottime_ns())
        if decision.step is Step.WAIT:
            await asyncio.sleep(decision.seconds)
        elif decision.step is Step.RENEW:
            return await self._renew(lease)
        return decision.step is not Step.END

    async def _renew(self, lease: _Lease) -> bool:
        asked_ns = self._clock.boottime_ns()
        try:
            async with asyncio.timeout(lease.tenure.attempt_seconds(asked_ns)):
                seconds = await self._store.keep_alive(lease.id)
                lease.tenure.renewed(asked_ns, seconds)
                await self.verify()
        except LeaseExpired:
            return False
        except (PenstockError, TimeoutError) as error:
            _logger.warning("lease_not_renewed", lease=lease.id, reason=str(error))
            lease.tenure.failed(self._clock.boottime_ns())
        return True

    async def _lose_all(self, lease: _Lease) -> None:
        held, self._held, self._lease = self._held, {}, None
        self._leaving.clear()
        _logger.error("lease_lost", lease=lease.id, topics=len(held))
        for topic, epoch in held.items():
            self._tell(topic, epoch, LEASE_ENDED)
        # If it still lives in the store, nobody need wait for its end.
        await self._end(lease.id)

    async def _begin_anew(self) -> None:
        try:
            self._lease = await self._new_lease()
        except PenstockError as error:
            _logger.warning("no_lease", reason=str(error))
            await asyncio.sleep(self._terms.seconds / 12)

    async def _end(self, lease: LeaseId) -> None:
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._store.revoke(lease)

    async def _verify_some(self, held: Sequence[tuple[TopicName, Epoch]]) -> None:
        outcome = await self._store.transaction([self._compare(*item) for item in held], [])
        if outcome.succeeded:
            return
        for topic, epoch in held:
            owner = await find_owner(self._store, self._keys, topic)
            if owner is None:
                self._lose(topic, epoch, NOT_OURS)
            elif owner.epoch != epoch:
                reason = f"broker {owner.broker} at {owner.address} owns the topic now"
                self._lose(topic, epoch, reason)

    def _lose(self, topic: TopicName, epoch: Epoch, reason: str) -> None:
        # It may have been released, or acquired anew, while the store was asked.
        if self._held.get(topic) == epoch:
            del self._held[topic]
            _logger.error("topic_lost", topic=str(topic), epoch=epoch, reason=reason)
            self._tell(topic, epoch, reason)

    def _tell(self, topic: TopicName, epoch: Epoch, reason: str) -> None:
        try:
            self._on_lost(topic, epoch, reason)
        except Exception:
            # One topic's trouble must not end the task that keeps the lease of the others.
            _logger.exception("loss_not_handled", topic=str(topic), epoch=epoch)


async def find_owner(store: Metadata, keys: Keys, topic: TopicName) -> Owner | None:
    """Who owns the topic now, if anybody does."""
    entry = await store.get(keys.owner(topic))
    if entry is None:
        return None
    facts = json.loads(entry.value)
    return Owner(facts["broker"], facts["address"], Epoch(entry.create_revision))
