"""Ownership of topics: one broker at a time, by lease, with a fencing token.

A broker has one lease, which a thread renews (lease_keeper.py). It owns a topic while the topic's
owner key, created by a transaction and bound to that lease, exists; the key's create revision is
the *epoch*. Holding a lease proves nothing by itself, since a broker can be suspended for longer
than its lease between a check and a write. Therefore:

- every write that only the owner may make carries `guard`, so that the store refuses the write of a
  deposed owner;
- every group of appends checks `may_ack` with its epoch once it is durable, so that a broker that
  was suspended notices by its clock before it acknowledges anything;
- every protocol checks `lease_valid` again in the turn of the event loop in which it writes
  confirmations to a connection, since the broker may have been suspended in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, NewType

import structlog

from penstock.host.clock import Clock
from penstock.host.tasks import KeyedLocks, Tasks
from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    LeaseExpired,
    LeaseId,
    Metadata,
    Put,
)
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.ownership.lease_keeper import LeaseKeeper
from penstock.metadata.ownership.tenure import (
    RENEWALS_PER_LEASE,
    RETRIES_PER_LEASE,
    LeaseTerms,
    Tenure,
)
from penstock.metadata.requests import OPERATIONS_MAX
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.units import Nanoseconds

Epoch = NewType("Epoch", int)
"""Identifies a period of ownership; ascends with every change of a topic's owner."""

LEASE_ENDED: Final = (
    "this broker's lease ended; the topic is served again, here or elsewhere, once the metadata "
    "store answers"
)
NOT_OURS: Final = "this broker does not own the topic any more; ask again"
"""The reason of a loss if no other owner is known."""

CLOSE_SECONDS: Final = 5.0
"""How long `close` tries to revoke the lease; otherwise topics are free when it expires."""

_logger = structlog.get_logger(__name__)


class NotOwner(PenstockError):
    """This broker does not own the topic, or does not own it any more."""

    code = "not_owner"

    def __init__(self, topic: TopicName) -> None:
        super().__init__(f"this broker does not own topic {topic}")
        self.topic = topic


class Owner(NamedTuple):
    """The broker that owns a topic."""

    broker: str
    address: str
    epoch: Epoch


class _Lease(NamedTuple):
    id: LeaseId
    tenure: Tenure


class Ownership:
    """Acquires and releases topics for one broker.

    `on_lost` is called once for each topic that is lost, not released, with its epoch and the
    reason.
    """

    def __init__(
        self,
        store: Metadata,
        keys: MetadataKeys,
        broker: str,
        address: str,
        on_lost: Callable[[TopicName, Epoch, str], None],
        terms: LeaseTerms | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._value = json.dumps({"broker": broker, "address": address}).encode()
        self._on_lost = on_lost
        self._terms = terms or LeaseTerms()
        self._clock = clock or Clock()
        self._lease: _Lease | None = None
        self._held: dict[TopicName, Epoch] = {}
        self._leaving: dict[TopicName, Epoch] = {}
        """Released, but not confirmed by the store: the key may be deleted at any time."""
        self._locks: KeyedLocks[TopicName] = KeyedLocks()
        """Serializes the calls of `acquire` and `release` for a topic."""
        self._keeper: LeaseKeeper | None = None
        self._tasks = Tasks()
        self._verification: asyncio.Task[None] | None = None
        self._closed = False
        self.leases_lost = 0
        """Counts leases that ended without being revoked by this broker."""

    async def start(self) -> None:
        """Get a lease and renew it until `close`; raises MetadataUnavailable."""
        lease = await self._new_lease()
        self._keeper = LeaseKeeper(
            self._store.renewer(), self._terms, self._clock, self._renewed, self._ended
        )
        self._hold(lease)

    @property
    def valid_until_ns(self) -> Nanoseconds:
        """The time of CLOCK_BOOTTIME from which on acks are forbidden; 0 without a lease."""
        return Nanoseconds(0) if self._lease is None else self._lease.tenure.valid_until_ns

    def lease_valid(self) -> bool:
        """Whether the lease is valid by the clock; check it right before writing an ack."""
        return self._clock.boottime_ns() < self.valid_until_ns

    def may_ack(self, topic: TopicName, epoch: Epoch) -> bool:
        """Whether appends of this epoch may be acknowledged; check it right before the ack."""
        if self._held.get(topic) != epoch:
            return False
        return self.lease_valid()

    def epoch(self, topic: TopicName) -> Epoch:
        """The epoch of a topic that this broker owns; raises NotOwner."""
        epoch = self._held.get(topic)
        if epoch is None:
            raise NotOwner(topic)
        return epoch

    def guard(self, topic: TopicName) -> Compare:
        """The comparison that each write by the topic's owner must carry; raises NotOwner."""
        return self._compare(topic, self.epoch(topic))

    async def acquire(self, topic: TopicName) -> Epoch | None:
        """Acquire the topic; returns its epoch, or None while another broker owns it.

        After MetadataUnavailable this broker may own the topic or not; acquire it again. Raises
        LeaseExpired while this broker has no lease.
        """
        async with self._locks[topic]:
            if topic in self._held:
                return self._held[topic]
            lease = self._lease
            if lease is None:
                raise LeaseExpired("this broker has no lease now")
            await self._delete_released(topic)
            epoch = await self._take(topic, lease.id)
            if lease is not self._lease:
                raise LeaseExpired("the lease ended meanwhile")
            if epoch is not None:
                self._held[topic] = epoch
            return epoch

    async def release(self, topic: TopicName) -> None:
        """Release the topic; acks stop at once.

        After MetadataUnavailable other brokers may have to wait until it is released or acquired
        again.
        """
        async with self._locks[topic]:
            epoch = self._held.pop(topic, None)
            if epoch is None and self._lease is not None:
                # An unanswered `acquire` may have left the key.
                epoch = await self._left_by(topic, self._lease.id)
            if epoch is not None:
                self._leaving[topic] = epoch
            await self._delete_released(topic)

    async def verify(self) -> None:
        """Check ownership of all topics in the store; topics with another owner are lost.

        Called after every renewal. Raises MetadataUnavailable.
        """
        held = list(self._held.items())
        for start in range(0, len(held), OPERATIONS_MAX):
            await self._verify_some(held[start : start + OPERATIONS_MAX])

    def deposed(self, topic: TopicName, epoch: Epoch) -> None:
        """Note that the store refused a write with the guard of this epoch: the topic is lost."""
        self._lose(topic, epoch, NOT_OURS)

    async def close(self) -> None:
        """Stop acks, then release everything if the store replies soon."""
        self._closed = True
        await self._tasks.cancel()
        if self._keeper is not None:
            await self._keeper.close()
        lease, self._lease = self._lease, None
        self._held.clear()
        if lease is not None:
            await self._end(lease.id)

    def _compare(self, topic: TopicName, epoch: Epoch) -> Compare:
        return Compare(self._keys.owner(topic), CompareTarget.CREATE_REVISION, epoch)

    async def _take(self, topic: TopicName, lease: LeaseId) -> Epoch | None:
        key = self._keys.owner(topic)
        absent = Compare(key, CompareTarget.CREATE_REVISION, 0)
        outcome = await self._store.transaction([absent], [Put(key, self._value, lease)])
        if outcome.succeeded:
            return Epoch(outcome.revision)
        return await self._left_by(topic, lease)

    async def _delete_released(self, topic: TopicName) -> None:
        """Delete the owner key of a released epoch; on return it does not exist."""
        if topic in self._leaving:
            guard = self._compare(topic, self._leaving[topic])
            await self._store.transaction([guard], [DeleteKeys(self._keys.owner(topic))])
            del self._leaving[topic]

    async def _left_by(self, topic: TopicName, lease: LeaseId) -> Epoch | None:
        """The epoch of an owner key that an unanswered call created with this lease."""
        entry = await self._store.get(self._keys.owner(topic))
        return Epoch(entry.create_revision) if entry and entry.lease == lease else None

    async def _new_lease(self) -> _Lease:
        requested_ns = self._clock.boottime_ns()
        lease = await self._store.grant(self._terms.seconds)
        return _Lease(lease, Tenure(self._terms, requested_ns))

    def _hold(self, lease: _Lease) -> None:
        assert self._keeper is not None
        self._lease = lease
        self._keeper.keep(lease.id, lease.tenure)

    def _renewed(self) -> None:
        if not self._closed and (self._verification is None or self._verification.done()):
            self._verification = self._tasks.start(self._verify_in_time())

    async def _verify_in_time(self) -> None:
        try:
            async with asyncio.timeout(self._terms.seconds / RENEWALS_PER_LEASE):
                await self.verify()
        except (PenstockError, TimeoutError) as error:
            _logger.warning("ownership_not_verified", reason=str(error) or "no answer in time")

    def _ended(self, lease: LeaseId) -> None:
        """Report all topics as lost, and get another lease."""
        if self._closed:
            return
        self.leases_lost += 1
        held, self._held, self._lease = self._held, {}, None
        self._leaving.clear()
        _logger.error("lease_lost", lease=lease, topics=len(held))
        self._tasks.start(self._replace(lease))
        for topic, epoch in held.items():
            self._report_loss(topic, epoch, LEASE_ENDED)

    async def _replace(self, ended: LeaseId) -> None:
        # If it still exists in the store, other brokers need not wait for its end.
        await self._end(ended)
        while True:
            try:
                lease = await self._new_lease()
            except PenstockError as error:
                _logger.warning("no_lease", reason=str(error))
                await asyncio.sleep(self._terms.seconds / RETRIES_PER_LEASE)
            else:
                self._hold(lease)
                return

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
        # The topic may have been released, or acquired again, during the call of the store.
        if self._held.get(topic) == epoch:
            del self._held[topic]
            _logger.error("topic_lost", topic=str(topic), epoch=epoch, reason=reason)
            self._report_loss(topic, epoch, reason)

    def _report_loss(self, topic: TopicName, epoch: Epoch, reason: str) -> None:
        try:
            self._on_lost(topic, epoch, reason)
        except Exception:
            # A failure about one topic must not end the task that renews the lease of the others.
            _logger.exception("loss_not_handled", topic=str(topic), epoch=epoch)


async def find_owner(store: Metadata, keys: MetadataKeys, topic: TopicName) -> Owner | None:
    """The broker that owns the topic now; None if there is none."""
    entry = await store.get(keys.owner(topic))
    if entry is None:
        return None
    facts = json.loads(entry.value)
    return Owner(facts["broker"], facts["address"], Epoch(entry.create_revision))
