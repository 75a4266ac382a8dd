"""Compares the ledger with a slow model that has an object for every message."""

from dataclasses import dataclass

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import PullRequest
from penstock.ledger.rules import AckPolicy, Rules
from penstock.ledger.settlement import Journal, SettledState, decode, encode

WAIT_NS = 10
SEQS = st.integers(1, 40)
ACKING = st.sampled_from([AckPolicy.EXPLICIT, AckPolicy.ALL])


@dataclass
class Message:
    """A message in flight."""

    consumer_seq: int
    due_ns: int
    deliveries: int = 1
    queued: bool = False


class LedgerModel(RuleBasedStateMachine):
    """Delivers, settles, naks and waits in any order."""

    @initialize(
        policy=ACKING,
        deliveries_max=st.sampled_from([0, 2, 3]),
        pending_max=st.sampled_from([0, 3, 8]),
        backoff_ns=st.sampled_from([(), (5, 15)]),
    )
    def begin(
        self,
        policy: AckPolicy,
        deliveries_max: int,
        pending_max: int,
        backoff_ns: tuple[int, ...],
    ) -> None:
        self.limits = Rules(
            ack_policy=policy,
            ack_wait_ns=WAIT_NS,
            deliveries_max=deliveries_max,
            pending_max=pending_max,
            backoff_ns=backoff_ns,
        )
        self.ledger = ConsumerLedger(self.limits)
        self.journal = Journal(self.ledger, "c", 1)
        self.kept = SettledState()
        self.now = 0
        self.model: dict[int, Message] = {}
        self.queue: list[int] = []
        self.repeated: dict[int, int] = {}
        self.consumer_seq = self.last_seq = 0

    # -- steps

    @rule(batch=st.integers(1, 6))
    def pull(self, batch: int) -> None:
        request = PullRequest(b"in", batch)
        assert self.ledger.request(request, self.now, 100) is None
        plan = self.ledger.plan(100, self.now)
        again = self.queue[:batch]
        assert plan.redeliver == again
        room = 100 if not self.limits.pending_max else self.limits.pending_max - len(self.model)
        assert min(plan.new_count, 100) == max(0, min(batch - len(again), room))
        if again:
            self.ledger.offer(again, None, 100, self.now)
            self.ledger.record_redelivery(again, self.now)
        fresh = range(self.last_seq + 1, self.last_seq + 1 + plan.new_count)
        if fresh:
            self.ledger.offer(fresh, None, 100, self.now)
            self.ledger.record_delivery(fresh, self.now)
        self.ledger.withdraw(request)
        for seq in again:
            message = self.model[seq]
            self.queue.remove(seq)
            message.queued = False
            message.deliveries += 1
            self.repeated[seq] = message.deliveries
            message.due_ns = self.now + self.limits.wait_ns(message.deliveries)
            self.consumer_seq += 1
        for seq in fresh:
            self.consumer_seq += 1
            self.model[seq] = Message(self.consumer_seq, self.now + self.limits.wait_ns(1))
            self.last_seq = seq

    @rule(seqs=st.lists(SEQS, max_size=6))
    def ack(self, seqs: list[int]) -> None:
        wanted = set(seqs)
        if self.limits.ack_policy is AckPolicy.ALL:
            highest = max((seq for seq in seqs if seq <= self.last_seq), default=0)
            wanted = set(range(1, highest + 1))
        expected = sorted(wanted & self.model.keys())
        assert sorted(self.ledger.ack(seqs)) == expected
        self.forget(expected)
        if not expected and self.limits.ack_policy is not AckPolicy.ALL:
            for seq in seqs:
                self.repeated.pop(seq, None)

    @rule(seq=SEQS)
    def terminate(self, seq: int) -> None:
        known = [seq] if seq in self.model else []
        assert self.ledger.terminate([seq]) == known
        self.forget(known)
        self.repeated.pop(seq, None)

    @rule(seq=SEQS, delay_ns=st.sampled_from([0, 7]))
    def refuse(self, seq: int, delay_ns: int) -> None:
        exhausted = self.ledger.nak(seq, delay_ns, self.now)
        message = self.model.get(seq)
        if message is None:
            assert exhausted == []
            return
        if seq in self.queue:
            self.queue.remove(seq)
            message.queued = False
        if delay_ns:
            assert exhausted == []
            message.due_ns = self.now + delay_ns
        else:
            assert exhausted == self.enqueue([seq])

    @rule(seq=SEQS)
    def progress(self, seq: int) -> None:
        self.ledger.progress([seq], self.now)
        message = self.model.get(seq)
        if message is not None and not message.queued:
            message.due_ns = self.now + self.limits.wait_ns(message.deliveries)

    @rule(step_ns=st.integers(1, 12))
    def wait(self, step_ns: int) -> None:
        deadline = self.ledger.next_deadline()
        dues = [item.due_ns for item in self.model.values() if not item.queued]
        assert not dues or deadline is not None
        assert not dues or deadline is None or deadline <= min(dues)
        self.now += step_ns
        due = [
            seq for seq, item in self.model.items() if not item.queued and item.due_ns <= self.now
        ]
        assert self.ledger.tick(self.now).exhausted == self.enqueue(sorted(due))

    @rule(whole=st.booleans())
    def write_down(self, whole: bool) -> None:
        if whole:
            self.journal.require_whole()
        settlement = self.journal.take()
        if settlement is not None:
            _, version, *entries = msgspec.msgpack.decode(encode([settlement]))
            [read] = decode(version, entries)
            self.kept.apply(read)

    @rule()
    def restart(self) -> None:
        """Restore everything that was written; deadlines start again."""
        self.write_down(False)
        self.ledger = ConsumerLedger(self.limits)
        self.journal = Journal(self.ledger, "c", 1)
        self.kept.restore(self.ledger, self.now)
        self.journal.resume()
        self.queue = []
        for message in self.model.values():
            message.queued = False
            message.due_ns = self.now + self.limits.wait_ns(message.deliveries)

    # -- laws

    @invariant()
    def flying_messages_agree(self) -> None:
        if not hasattr(self, "ledger"):
            return
        pending = self.ledger.pending
        assert list(pending.consumer_seqs.items()) == [
            (seq, item.consumer_seq) for seq, item in sorted(self.model.items())
        ]
        assert pending.redelivered == len(self.repeated)
        assert pending.take(100) == self.queue
        assert (self.ledger.consumer_seq, self.ledger.stream_seq) == (
            self.consumer_seq,
            self.last_seq,
        )
        first = min(self.model, default=self.last_seq + 1)
        assert self.ledger.settled_stream_seq == first - 1
        assert self.ledger.floor_stream_seq <= first - 1

    # -- details

    def enqueue(self, seqs: list[int]) -> list[int]:
        exhausted = []
        for seq in seqs:
            message = self.model[seq]
            if self.limits.deliveries_max and message.deliveries >= self.limits.deliveries_max:
                del self.model[seq]
                exhausted.append(seq)
            else:
                message.queued = True
                self.queue.append(seq)
        return exhausted

    def forget(self, seqs: list[int]) -> None:
        for seq in seqs:
            del self.model[seq]
            self.repeated.pop(seq, None)
            if seq in self.queue:
                self.queue.remove(seq)


TestLedgerModel = LedgerModel.TestCase
TestLedgerModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
