"""Observers of one event: functions that its source calls in the order of registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Cancel = Callable[[], None]
"""Ends a registration; calling it again does nothing."""

_P = ParamSpec("_P")


class Notifier(Generic[_P]):
    """Calls every registered observer with the facts of an event; observers must not raise."""

    __slots__ = ("_observers",)

    def __init__(self) -> None:
        self._observers: dict[object, Callable[_P, object]] = {}

    def add(self, observer: Callable[_P, object]) -> Cancel:
        """Call `observer` on every event from now on; returns the function that ends this."""
        registration = object()
        self._observers[registration] = observer

        def cancel() -> None:
            self._observers.pop(registration, None)

        return cancel

    def __call__(self, *facts: _P.args, **named_facts: _P.kwargs) -> None:
        """Notify the observers that are registered now."""
        for observer in tuple(self._observers.values()):
            observer(*facts, **named_facts)


def cancel_all(*cancels: Cancel) -> Cancel:
    """One function that ends several registrations."""

    def cancel() -> None:
        for each in cancels:
            each()

    return cancel
