"""An observer that records its calls."""

from __future__ import annotations

from collections.abc import Callable

from penstock.log import LogObserver
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset


class Recorder(LogObserver):
    """Notes every run, and what `on_commit` and `on_discard` return at those moments."""

    def __init__(
        self,
        on_commit: Callable[[set[int]], object] = set,
        on_discard: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_commit, self._on_discard = on_commit, on_discard
        self.runs: list[tuple[int, int]] = []
        self.commits: list[object] = []
        self.groups = 0
        self.discards: list[object] = []

    def appended(self, run: Run | ColumnRun, first_offset: Offset) -> None:
        self.runs.append((run.count, first_offset))

    def committed(self, partitions: set[int]) -> None:
        self.commits.append(self._on_commit(partitions))

    def group_committed(self) -> None:
        self.groups += 1

    def discarded(self) -> None:
        self.discards.append(self._on_discard())
