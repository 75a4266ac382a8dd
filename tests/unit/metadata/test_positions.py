from penstock.metadata.positions import Positions, Subscription
from penstock.model.names import TopicName
from penstock.model.units import Nanoseconds, Offset

ORDERS = TopicName("default", "default", "orders")
EVENTS = TopicName("default", "default", "events")
A, B, C = Subscription(ORDERS, "a"), Subscription(ORDERS, "b"), Subscription(EVENTS, "c")


def seconds(count: float) -> Nanoseconds:
    return Nanoseconds(int(count * 1e9))


def begun(*subscriptions: Subscription, interval: float = 5.0, delta: int = 100) -> Positions:
    positions = Positions(interval, delta, seconds(0))
    for subscription in subscriptions:
        positions.begin(subscription, Offset(0))
    return positions


def test_a_position_never_goes_back() -> None:
    positions = begun(A)
    positions.record(A, Offset(10))
    positions.record(A, Offset(9))
    assert positions.recorded(A) == 10
    assert positions.unsaved() == {A: 10}


def test_a_subscription_that_was_not_begun_is_ignored() -> None:
    positions = begun(A)
    assert not positions.record(B, Offset(1000))
    positions.was_saved(B, Offset(1000))
    positions.forget(B)
    assert positions.unsaved() == {}
    assert positions.saved(B) is None


def test_all_that_moved_is_due_when_the_interval_ends() -> None:
    positions = begun(A, B, C)
    positions.record(A, Offset(1))
    positions.record(C, Offset(2))
    assert positions.due(seconds(4.9)) == {}
    assert positions.wait_seconds(seconds(4)) == 1.0
    assert positions.due(seconds(5)) == {A: 1, C: 2}
    assert positions.wait_seconds(seconds(5)) == 5.0


def test_one_that_moved_far_is_due_at_once_and_says_so_once() -> None:
    positions = begun(A, B)
    positions.record(B, Offset(99))
    assert not positions.record(A, Offset(99))
    assert positions.record(A, Offset(100))
    assert not positions.record(A, Offset(150))
    assert positions.wait_seconds(seconds(1)) == 0.0
    assert positions.due(seconds(1)) == {A: 150}
    positions.was_saved(A, Offset(150))
    assert positions.due(seconds(1)) == {}
    assert not positions.record(A, Offset(249))
    assert positions.record(A, Offset(250))


def test_one_that_moved_far_while_it_was_saved_is_due_again() -> None:
    positions = begun(A)
    positions.record(A, Offset(100))
    saving = positions.due(seconds(1))
    positions.record(A, Offset(300))
    positions.was_saved(A, saving[A])
    assert positions.saved(A) == 100
    assert positions.due(seconds(1)) == {A: 300}


def test_what_is_saved_is_not_saved_again() -> None:
    positions = begun(A)
    positions.record(A, Offset(1))
    positions.was_saved(A, Offset(1))
    assert positions.due(seconds(5)) == {}


def test_a_store_that_has_more_sets_the_position_forward() -> None:
    positions = begun(A)
    positions.record(A, Offset(1))
    positions.was_saved(A, Offset(7))
    assert (positions.saved(A), positions.recorded(A)) == (7, 7)
    positions.was_saved(A, Offset(5))
    assert positions.saved(A) == 7


def test_after_a_failure_everything_waits_longer_each_time_up_to_the_interval() -> None:
    positions = begun(A, interval=0.3)
    positions.record(A, Offset(500))
    now = 0.0
    pauses = []
    for _ in range(4):
        positions.failed(seconds(now))
        pauses.append(positions.wait_seconds(seconds(now)))
        assert positions.due(seconds(now)) == {}
        now += pauses[-1]
    assert pauses == [0.1, 0.2, 0.3, 0.3]
    assert positions.due(seconds(now)) == {A: 500}


def test_many_failures_of_one_round_are_one() -> None:
    positions = begun(A, B)
    positions.failed(seconds(1))
    positions.failed(seconds(1.05))
    assert positions.wait_seconds(seconds(1)) == 0.1


def test_what_failed_is_due_after_the_pause_and_not_after_the_interval() -> None:
    positions = begun(A)
    positions.record(A, Offset(1))
    assert positions.due(seconds(5)) == {A: 1}
    positions.failed(seconds(5))
    assert positions.due(seconds(5.1)) == {A: 1}


def test_a_success_ends_the_pause() -> None:
    positions = begun(A)
    positions.failed(seconds(1))
    positions.was_saved(A, Offset(0))
    positions.record(A, Offset(100))
    assert positions.due(seconds(1)) == {A: 100}


def test_unsaved_of_one_topic_or_of_all() -> None:
    positions = begun(A, B, C)
    positions.record(A, Offset(1))
    positions.record(C, Offset(2))
    assert positions.unsaved(ORDERS) == {A: 1}
    assert positions.unsaved(EVENTS) == {C: 2}
    assert positions.unsaved() == {A: 1, C: 2}


def test_a_forgotten_subscription_is_gone() -> None:
    positions = begun(A)
    positions.record(A, Offset(100))
    positions.forget(A)
    assert positions.due(seconds(5)) == {}
    assert not positions.record(A, Offset(200))


def test_a_subscription_is_named_with_its_topic() -> None:
    assert str(A) == "default/default/orders/a"
