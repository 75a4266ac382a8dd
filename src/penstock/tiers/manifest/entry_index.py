"""Finds the manifest entry that covers an offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from penstock.model.units import PartitionRange
from penstock.tiers.manifest.entries import ObjectEntry


class EntryIndex:
    """The entries of a manifest, by sequence number and by offset."""

    def __init__(self, entries: Iterable[ObjectEntry] = ()) -> None:
        self._by_sequence: dict[int, ObjectEntry] = {}
        self._firsts: dict[int, list[int]] = {}
        self._entries: dict[int, list[ObjectEntry]] = {}
        for entry in entries:
            self.add(entry)

    def __iter__(self) -> Iterator[ObjectEntry]:
        return iter(self._by_sequence.values())

    def __len__(self) -> int:
        return len(self._by_sequence)

    def add(self, entry: ObjectEntry) -> None:
        """Add an entry that lies after all others of its partitions."""
        self._by_sequence[entry.sequence] = entry
        for span in entry.ranges:
            self._firsts.setdefault(span.partition, []).append(span.first)
            self._entries.setdefault(span.partition, []).append(entry)

    def ordered(self) -> list[ObjectEntry]:
        """The entries by sequence number."""
        return sorted(self, key=lambda entry: entry.sequence)

    def find(self, partition: int, offset: int) -> tuple[ObjectEntry, PartitionRange] | None:
        """The entry that covers the offset, and its range; None if there is none."""
        firsts = self._firsts.get(partition, [])
        index = bisect_right(firsts, offset) - 1
        if index < 0:
            return None
        entry = self._entries[partition][index]
        span = next(r for r in entry.ranges if r.partition == partition)
        return (entry, span) if offset < span.next else None

    def end(self, partition: int) -> int:
        """The offset after the last one of the partition that an entry covers; 0 without one."""
        entries = self._entries.get(partition)
        return (
            next(r.next for r in entries[-1].ranges if r.partition == partition) if entries else 0
        )

    def next_first(self, partition: int, offset: int) -> int | None:
        """The lowest first offset of an entry that is above `offset`; None if there is none."""
        firsts = self._firsts.get(partition, [])
        index = bisect_right(firsts, offset)
        return firsts[index] if index < len(firsts) else None
