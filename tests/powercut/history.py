"""The history of one image: every fact since it was made, held against every recovery.

Pure: facts in, violations out. Between `begin` and the fact `Recovered`, what a reader got is what
recovery found; a recovery that was cut short says nothing. From the fact `Cutting` on, attempts
still count, since they may have reached the disk, but promises do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.powercut import facts
from tests.powercut.facts import Fact, Place
from tests.powercut.partition import Deletion, Held, Kind, Partition, Stored, Violation


class _Topic:
    """Beyond its partitions: whether it was made, what its acks promise, its settlements."""

    def __init__(self) -> None:
        self.created = False
        self.cloud = False
        self.settling: set[int] = set()
        self.settled: set[int] = set()

    def settlement_acked(self, operation: int) -> None:
        self.settled.add(operation)

    def recovered(self, name: str, there: bool, found: list[int]) -> Iterator[Violation]:
        if self.created and not there:
            yield Violation(Kind.TOPIC, f"{name} was made, and is not there")
        lost = self.settled - set(found)
        if lost:
            yield Violation(Kind.SETTLEMENT, f"{name} lost settlements {sorted(lost)}")
        if found != sorted(set(found)) or not self.settling.union(self.settled).issuperset(found):
            yield Violation(
                Kind.SETTLEMENT, f"{name} has settlements {found}, not as they were sent"
            )
        self.created = there
        self.settling, self.settled = set(), set(found)


class History:
    """Takes facts in the order in which they were told; answers what they break."""

    def __init__(self) -> None:
        self._partitions: dict[Place, Partition] = {}
        self._topics: defaultdict[str, _Topic] = defaultdict(_Topic)
        self._acknowledge: dict[int, Callable[[], None]] = {}
        self._under_way: dict[facts.Id, tuple[Place, int]] = {}
        self._recovering = False
        self._promising = True
        self._too_late: set[facts.Id] | None = None
        self._stored: defaultdict[Place, Stored] = defaultdict(Stored)
        self._settled: defaultdict[str, list[int]] = defaultdict(list)
        self._damages: list[Violation] = []
        self._uploads: dict[str, int] = {}
        self.uploads_cut = 0
        self.merged = 0
        self.acks = 0
        self.records = 0
        self.deletions = 0

    @property
    def messages(self) -> int:
        """How many are known to be there."""
        return sum(partition.messages for partition in self._partitions.values())

    @property
    def uploads(self) -> int:
        """Objects that were ever uploaded, as the manifests tell."""
        return sum(self._uploads.values())

    @property
    def cold_records(self) -> int:
        """Records that recoveries read from objects because the WAL had dropped them."""
        return sum(partition.cold_records for partition in self._partitions.values())

    @property
    def recorded_holes(self) -> int:
        """Offsets that were given up without having been acknowledged, and are marked as such."""
        return sum(partition.recorded_holes for partition in self._partitions.values())

    def begin(self) -> None:
        """The child starts anew; nothing it said before is still under way."""
        self._recovering = True
        self._promising = True
        self._too_late = None
        self._stored.clear()
        self._settled.clear()
        self._damages.clear()

    def tell(self, fact: Fact) -> list[Violation]:
        return list(_HANDLERS[type(fact)](self, fact))

    def _sending(self, fact: facts.Sending) -> Iterator[Violation]:
        first, place = (fact.publisher, fact.first), (fact.topic, fact.partition)
        self._under_way[first] = (place, fact.count)
        self._partition(place).sending(first, fact.count)
        if self._too_late is not None:
            self._too_late.add(first)
        yield from ()

    def _acked(self, fact: facts.Acked) -> Iterator[Violation]:
        first = (fact.publisher, fact.first)
        if first not in self._under_way:
            yield Violation(Kind.PHANTOM, f"{first} was acked, but was not under way")
            return
        if self._too_late and first in self._too_late:
            yield Violation(Kind.LIE, f"{first} was sent with the power off, and acked")
        place, count = self._under_way.pop(first)
        if not self._promising:
            return
        self.acks += count
        cloud = self._topics[place[0]].cloud
        yield from self._partition(place).acked(first, count, fact.offset, cloud)

    def _read(self, fact: facts.Read) -> Iterator[Violation]:
        self.records += len(fact.offsets)
        place = (fact.topic, fact.partition)
        records = zip(fact.offsets, fact.ids, strict=True)
        if self._recovering:
            self._stored[place].records.extend(records)
            return
        if not self._promising:
            return
        for offset, id_ in records:
            yield from self._partition(place).read(offset, id_)

    def _creating(self, fact: facts.Creating) -> Iterator[Violation]:
        topic = self._topics[fact.topic]
        topic.cloud = fact.cloud
        self._acknowledge[fact.operation] = lambda: setattr(topic, "created", True)
        yield from ()

    def _deleting(self, fact: facts.Deleting) -> Iterator[Violation]:
        self._delete(fact.operation, fact, Deletion(frozenset(fact.offsets)))
        yield from ()

    def _purging(self, fact: facts.Purging) -> Iterator[Violation]:
        self._delete(fact.operation, fact, Deletion(start=fact.start))
        yield from ()

    def _delete(
        self, operation: int, fact: facts.Deleting | facts.Purging, deletion: Deletion
    ) -> None:
        self._partition((fact.topic, fact.partition)).deleting(deletion)
        self._acknowledge[operation] = lambda: setattr(deletion, "acked", True)
        self.deletions += 1

    def _settling(self, fact: facts.Settling) -> Iterator[Violation]:
        topic = self._topics[fact.topic]
        topic.settling.add(fact.operation)
        self._acknowledge[fact.operation] = lambda: topic.settlement_acked(fact.operation)
        yield from ()

    def _done(self, fact: facts.Done) -> Iterator[Violation]:
        if self._promising:
            self._acknowledge.pop(fact.operation)()
        yield from ()

    def _ends(self, fact: facts.Ends) -> Iterator[Violation]:
        stored = self._stored[fact.topic, fact.partition]
        stored.start, stored.next, stored.live = fact.start, fact.next, fact.live
        stored.files_start = fact.files_start
        yield from ()

    def _settled_found(self, fact: facts.Settled) -> Iterator[Violation]:
        self._settled[fact.topic] = fact.operations
        yield from ()

    def _manifest(self, fact: facts.Manifest) -> Iterator[Violation]:
        self._uploads[fact.topic] = fact.uploads
        self.uploads_cut += fact.under_way
        self.merged += fact.merged
        for partition, start in fact.starts.items():
            self._stored[fact.topic, partition].manifest_start = start
        for partition, offsets in fact.deleted.items():
            self._stored[fact.topic, partition].manifest_deleted = set(offsets)
        yield from ()

    def _object(self, fact: facts.Object) -> Iterator[Violation]:
        for problem in fact.problems:
            sentence = f"{fact.topic}: the manifest names {fact.key}: {problem}"
            self._damages.append(Violation(Kind.OBJECT, sentence))
        for partition, first, next_ in fact.ranges:
            held = Held(fact.key, first, next_, dict(fact.rows.get(partition, [])))
            self._stored[fact.topic, partition].objects.append(held)
        yield from ()

    def _recovered(self, fact: facts.Recovered) -> Iterator[Violation]:
        if not self._promising:
            return
        self._recovering = False
        self._under_way.clear()
        self._acknowledge.clear()
        yield from (Violation(Kind.TROUBLE, trouble) for trouble in fact.troubles)
        yield from self._damages
        for name in sorted({*self._topics, *fact.topics}):
            there = name in fact.topics
            yield from self._topics[name].recovered(name, there, self._settled[name])
        for place in sorted({*self._partitions, *self._stored}):
            cloud = self._topics[place[0]].cloud
            yield from self._partition(place).recovered(self._stored[place], cloud)

    def _writing(self, _: facts.Writing) -> Iterator[Violation]:
        yield from ()

    def _cutting(self, _: facts.Cutting) -> Iterator[Violation]:
        self._promising = False
        yield from ()

    def _cut(self, _: facts.Cut) -> Iterator[Violation]:
        self._too_late = set()
        yield from ()

    def _partition(self, place: Place) -> Partition:
        if place not in self._partitions:
            self._partitions[place] = Partition(place)
        return self._partitions[place]


_HANDLERS: Final[dict[type[Fact], Callable[[History, Any], Iterator[Violation]]]] = {
    facts.Sending: History._sending,
    facts.Acked: History._acked,
    facts.Read: History._read,
    facts.Creating: History._creating,
    facts.Deleting: History._deleting,
    facts.Purging: History._purging,
    facts.Settling: History._settling,
    facts.Done: History._done,
    facts.Ends: History._ends,
    facts.Settled: History._settled_found,
    facts.Manifest: History._manifest,
    facts.Object: History._object,
    facts.Writing: History._writing,
    facts.Recovered: History._recovered,
    facts.Cutting: History._cutting,
    facts.Cut: History._cut,
}
