from penstock.ledger.pending import ENTRIES_KEPT, Pending
from penstock.ledger.rules import Rules


def test_a_run_has_one_deadline_and_is_due_as_a_run() -> None:
    pending = Pending(Rules(ack_wait_ns=10))
    pending.add(range(1, 4), 1, 0)
    pending.settle([2])
    assert pending.next_deadline() == 10
    assert pending.overdue(9) == []
    assert pending.overdue(10) == [1, 3]
    assert pending.next_deadline() is None


def test_a_queued_message_is_not_due_before_its_redelivery() -> None:
    pending = Pending(Rules(ack_wait_ns=10))
    pending.add([1, 2], 1, 0)
    pending.queue([1])
    assert pending.take(5) == [1]
    assert pending.overdue(10) == [2]
    pending.repeat([1], 12)
    assert pending.take(5) == []
    assert pending.overdue(21) == []
    assert pending.overdue(22) == [1]


def test_work_in_progress_moves_the_deadline_of_that_message_only() -> None:
    pending = Pending(Rules(ack_wait_ns=10))
    pending.add([1, 2], 1, 0)
    pending.restart(1, 7)
    pending.restart(99, 7)
    assert pending.overdue(10) == [2]
    assert pending.deadline(1) == 17
    assert pending.overdue(17) == [1]


def test_a_delayed_refusal_is_due_after_its_delay_not_after_the_wait() -> None:
    pending = Pending(Rules(ack_wait_ns=10))
    pending.add([1], 1, 0)
    assert not pending.nak(1, 50, 5)
    assert pending.overdue(54) == []
    assert pending.overdue(55) == [1]


def test_a_refusal_without_delay_is_due_now_or_follows_the_backoff() -> None:
    pending = Pending(Rules(ack_wait_ns=10))
    pending.add([1], 1, 0)
    assert pending.nak(1, 0, 5)
    pending = Pending(Rules(backoff_ns=(3, 8), nak_backoff=True))
    pending.add([1], 1, 0)
    assert not pending.nak(1, 0, 5)
    assert pending.deadline(1) == 8


def test_delayed_messages_may_be_exempt_from_the_limit() -> None:
    for free, counted in ((False, 2), (True, 1)):
        pending = Pending(Rules(delayed_free=free))
        pending.add([1, 2], 1, 0)
        pending.nak(1, 50, 0)
        assert pending.counted == counted
        pending.queue([1])
        assert pending.counted == 2
        pending.nak(1, 50, 0)
        pending.settle([1])
        assert pending.counted == 1


def test_a_message_past_max_deliver_is_exhausted() -> None:
    pending = Pending(Rules(deliveries_max=2))
    pending.add([1, 2], 1, 0)
    assert pending.queue([1]) == []
    pending.repeat([1], 0)
    assert pending.queue([1, 2]) == [1]
    assert list(pending.consumer_seqs) == [2]
    assert pending.redelivered == 1
    assert pending.deliveries == {1: 2}
    once = Pending(Rules(deliveries_max=1))
    once.add([1, 2], 1, 0)
    assert once.queue([1]) == [1]
    assert (once.deliveries, once.redelivered) == ({1: 1}, 0)
    once.remove_counts(2)
    assert once.deliveries == {}


def test_an_undelivered_message_does_not_count() -> None:
    pending = Pending(Rules())
    pending.add([1], 1, 0)
    pending.undo_delivery([1])
    pending.queue([1])
    assert (pending.count(1), pending.redelivered) == (0, 0)
    pending.repeat([1], 0)
    assert (pending.count(1), pending.redelivered) == (1, 0)


def test_settling_forgets_everything_about_a_message() -> None:
    pending = Pending(Rules())
    pending.add([1, 2, 3], 1, 0)
    pending.queue([1, 2])
    pending.repeat([1], 0)
    assert pending.settle([1, 2, 7]) == [1, 2]
    assert (pending.queued, pending.redelivered, len(pending)) == (0, 0, 1)
    assert pending.up_to(9) == [3]


def test_entries_of_settled_runs_do_not_pile_up() -> None:
    pending = Pending(Rules())
    pending.add([1], 1, 0)
    for seq in range(2, 50 * ENTRIES_KEPT):
        pending.add([seq], seq, seq)
        pending.settle([seq])
    assert len(pending._due) <= ENTRIES_KEPT + 1
    assert pending.deadline(1) == Rules().ack_wait_ns


def test_restored_messages_wait_anew_as_often_as_they_were_delivered() -> None:
    pending = Pending(Rules(backoff_ns=(5, 9)))
    pending.restore({1: 1, 2: 2}, {2: 2}, 100)
    assert (pending.deadline(1), pending.deadline(2)) == (105, 109)
    assert pending.count(2) == 2
