"""Observers of a log are notified of its events on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset, PartitionId

_P = ParamSpec("_P")
Methods = tuple[Callable[_P, None], ...]


class LogObserver:
    """Receives events of one log. A subclass overrides the methods that it needs.

    The methods are called on the event loop and must not raise. Events that no observer overrides
    cost nothing.
    """

    def appended(self, run: Run | ColumnRun, first_offset: Offset) -> None:
        """A run has its offsets; it is not durable yet."""

    def committed(self, partitions: set[int]) -> None:
        """A group that changed these partitions is durable; its appends complete after this."""

    def group_committed(self) -> None:
        """A group of any frames is durable, also one that changed no partition."""

    def discarded(self) -> None:
        """Everything that was not durable was thrown away; its appends have failed."""

    def restored(self, partition: PartitionId, first_offset: Offset) -> None:
        """Offsets of a recorded gap became readable, the first of them is `first_offset`."""


class Observers:
    """The observers of one log; for every event, the methods to call."""

    __slots__ = (
        "_registered",
        "appended",
        "committed",
        "discarded",
        "group_committed",
        "restored",
    )

    def __init__(self) -> None:
        self._registered: dict[object, LogObserver] = {}
        self._refresh()

    def add(self, observer: LogObserver) -> Callable[[], None]:
        """Register an observer; returns the function that ends this."""
        registration = object()
        self._registered[registration] = observer
        self._refresh()

        def cancel() -> None:
            if self._registered.pop(registration, None) is not None:
                self._refresh()

        return cancel

    def notify_committed(self, partitions: set[int]) -> None:
        """Report that these partitions have changed, if there are any."""
        if partitions:
            for committed in self.committed:
                committed(partitions)

    def _refresh(self) -> None:
        self.appended: Methods[[Run | ColumnRun, Offset]] = self._overriding("appended")
        self.committed: Methods[[set[int]]] = self._overriding("committed")
        self.group_committed: Methods[[]] = self._overriding("group_committed")
        self.discarded: Methods[[]] = self._overriding("discarded")
        self.restored: Methods[[PartitionId, Offset]] = self._overriding("restored")

    def _overriding(self, method: str) -> tuple[Any, ...]:
        """The method of each observer whose class overrides it."""
        return tuple(
            getattr(observer, method)
            for observer in self._registered.values()
            if getattr(type(observer), method) is not getattr(LogObserver, method)
        )
