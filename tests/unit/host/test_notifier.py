"""Registration of observers and the order in which they are called."""

from __future__ import annotations

from penstock.host.notifier import Notifier, cancel_all


def test_observers_are_called_in_the_order_of_registration() -> None:
    event, calls = Notifier[[int]](), list[tuple[str, int]]()
    event(0)
    event.add(lambda fact: calls.append(("first", fact)))
    event.add(lambda fact: calls.append(("second", fact)))
    event(1)
    assert calls == [("first", 1), ("second", 1)]


def test_each_registration_of_one_function_is_cancelled_by_itself() -> None:
    event, calls = Notifier[[int]](), list[int]()
    cancel = event.add(calls.append)
    event.add(calls.append)
    cancel()
    cancel()
    event(1)
    assert calls == [1]


def test_an_observer_may_cancel_registrations_while_it_is_called() -> None:
    event, calls = Notifier[[]](), list[str]()

    def observer() -> None:
        calls.append("called")
        cancel()

    cancel = cancel_all(event.add(observer), event.add(lambda: calls.append("second")))
    event()
    event()
    assert calls == ["called", "second"]
