"""Processes of brokers, and the history that all of them tell together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from tests.fault.telling import TellingProcess
from tests.fault.tier_child import RUN, Facts, text_of

Place = tuple[int, int]
"""A partition and an offset."""
Rows = dict[Place, str]


class TierProcess(TellingProcess):
    """A process of tests/fault/tier_child.py."""

    def __init__(self, facts: Facts) -> None:
        self.life = facts.life
        errors = Path(facts.directory) / "errors.txt"
        super().__init__("tests.fault.tier_child", msgspec.json.encode(facts).decode(), errors)

    def wait_for_each(
        self, kind: str, topics: Collection[str], count: int = 1, since: int | None = None
    ) -> None:
        """Return once so many facts of this kind were told of each topic, from now or `since`."""
        first = len(self.told) if since is None else since

        def told() -> bool:
            found = Counter(fact[1] for fact in self.told[first:] if fact[0] == kind)
            return all(found[topic] >= count for topic in topics)

        self.wait_until(told)

    def epochs(self) -> dict[str, int]:
        """Under which it owns, or owned, each topic."""
        return {topic: epoch for _, topic, epoch in self.facts("owns")}

    def read(self) -> dict[str, Rows]:
        """By topic, everything a reader gets from the first offset on; in order, each once."""
        since = len(self.told)
        self.ask("read")
        self.wait_for("done", since=since)
        rows: dict[str, Rows] = defaultdict(dict)
        last: dict[tuple[str, int], int] = defaultdict(lambda: -1)
        for _, topic, partition, some in self.facts("read", since=since):
            for offset, text in some:
                assert offset > last[topic, partition]
                last[topic, partition] = offset
                rows[topic][partition, offset] = text
        return rows


class History:
    """What the owners of one topic told, in the order of their ownership."""

    def __init__(self, topic: str, owners: Iterable[TierProcess]) -> None:
        """No offset is acknowledged twice, whoever does it."""
        self.acked: Rows = {}
        self._sent: set[str] = set()
        self._owners: list[dict[int, list[int]]] = []
        for owner in owners:
            for _, _, partition, number in owner.facts("sent", topic):
                self._sent |= {text_of(owner.life, partition, number + n) for n in range(RUN)}
            self._owners.append(self._acked_by(owner, topic))

    def _acked_by(self, owner: TierProcess, topic: str) -> dict[int, list[int]]:
        offsets: dict[int, list[int]] = defaultdict(list)
        for _, _, partition, number, first in owner.facts("acked", topic):
            for n in range(RUN):
                place = (partition, first + n)
                assert place not in self.acked, "an offset was given twice"
                self.acked[place] = text_of(owner.life, partition, number + n)
                offsets[partition].append(first + n)
        return offsets

    def check(self, rows: Rows) -> None:
        """What is there was sent, once, and lies where it was acknowledged."""
        assert len(set(rows.values())) == len(rows), "a message is there twice"
        assert not set(rows.values()) - self._sent
        for place in rows.keys() & self.acked.keys():
            assert rows[place] == self.acked[place]

    def missing(self, rows: Rows) -> set[Place]:
        """Acknowledged, and not there."""
        return self.acked.keys() - rows.keys()

    def check_only_ends_missing(self, rows: Rows) -> None:
        """What is missing was acknowledged last by an owner that was followed by another one."""
        *deposed, last = self._owners
        for owner in deposed:
            for partition, offsets in owner.items():
                there = [(partition, offset) in rows for offset in sorted(offsets)]
                assert there == sorted(there, reverse=True), "a hole inside of what was uploaded"
        assert all((p, offset) in rows for p, offsets in last.items() for offset in offsets)
