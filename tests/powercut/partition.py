"""What must be in one partition, and what is wrong with what is.

After each recovery the model is what was found, no more and no less: what was sent and is not there
can never appear, what was deleted can never come back, and what was found can never go, whether it
had been acknowledged or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.powercut.facts import Id, Place


class Kind(Enum):
    """Ways to break a promise."""

    LOST = "lost"
    MOVED = "moved"
    REUSED = "reused"
    DUPLICATE = "duplicate"
    PHANTOM = "phantom"
    BACK = "back"
    ORDER = "order"
    TORN = "torn"
    HOLE = "hole"
    ENDS = "ends"
    TOPIC = "topic"
    SETTLEMENT = "settlement"
    LIE = "lie"
    MANIFEST = "manifest"
    OBJECT = "object"
    CLOUD = "cloud"
    TROUBLE = "trouble"


class Violation(NamedTuple):
    """A broken promise, with its facts in a sentence."""

    kind: Kind
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.sentence}"


@dataclass(slots=True)
class Deletion:
    """An attempt to delete: single offsets, or all before `start`."""

    offsets: frozenset[int] = frozenset()
    start: int = 0
    acked: bool = False

    def covers(self, offset: int) -> bool:
        return offset < self.start or offset in self.offsets


@dataclass(frozen=True, slots=True)
class Held:
    """An object that the manifest names, as far as one partition goes."""

    key: str
    first: int
    next: int
    rows: dict[int, Id]


@dataclass(slots=True)
class Stored:
    """What a recovery found: the ends, what the log says it has, what a reader got.

    And what the manifest had at the cut: objects in its order, its start, what it calls deleted.
    """

    start: int = 0
    next: int = 0
    live: int = 0
    files_start: int = 0
    records: list[tuple[int, Id]] = field(default_factory=list)
    objects: list[Held] = field(default_factory=list)
    manifest_start: int = 0
    manifest_deleted: set[int] = field(default_factory=set)


class Partition:
    """The model of one partition."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._start = 0
        self._end = 0
        self._next = 0
        self._known: dict[int, Id] = {}
        self._at: dict[Id, int] = {}
        self._runs: dict[Id, int] = {}
        self._sent: set[Id] = set()
        self._deletions: list[Deletion] = []
        self._uploaded = 0
        self._in_bucket: set[int] = set()
        self.recorded_holes = 0
        self.cold_records = 0

    @property
    def messages(self) -> int:
        """How many are known to be there."""
        return len(self._known)

    def sending(self, first: Id, count: int) -> None:
        self._runs[first] = count
        self._sent.update(_ids(first, count))

    def deleting(self, deletion: Deletion) -> None:
        self._deletions.append(deletion)

    def acked(self, first: Id, count: int, offset: int, cloud: bool) -> Iterator[Violation]:
        """The run with this first message was acknowledged from `offset` on."""
        if cloud:
            self._in_bucket.update(range(offset, offset + count))
        for position, id_ in enumerate(_ids(first, count)):
            yield from self._learn(offset + position, id_)

    def read(self, offset: int, id_: Id) -> Iterator[Violation]:
        """A reader got this message while the log was in use."""
        if any(deletion.acked and deletion.covers(offset) for deletion in self._deletions):
            yield self._violation(Kind.BACK, f"{id_} at {offset} was read after its deletion")
        yield from self._learn(offset, id_)

    def recovered(self, stored: Stored, cloud: bool) -> list[Violation]:
        """Hold what was found against what must be there; from now on it is what must be there."""
        found = dict(stored.records)
        violations = [
            *self._wrong_ends(stored),
            *self._wrong_records(stored),
            *self._lost(found),
            *self._torn_runs(found),
            *self._wrong_deletions(found),
            *self._wrong_count(stored, found),
            *self._wrong_manifest(stored, found),
            *(self._wrong_promises(stored, found) if cloud else ()),
        ]
        self.cold_records += sum(offset < stored.files_start for offset in found)
        self._uploaded = max((held.next for held in stored.objects), default=0)
        self._in_bucket = set()
        self._start, self._end, self._next = stored.start, stored.next, stored.next
        self._known, self._at = found, {id_: offset for offset, id_ in found.items()}
        self._runs, self._sent, self._deletions = {}, set(), []
        return violations

    def _learn(self, offset: int, id_: Id) -> Iterator[Violation]:
        there = self._known.get(offset)
        if there == id_:
            return
        if there is not None:
            yield self._violation(Kind.REUSED, f"{offset} was {there} and is {id_} now")
        elif offset < self._end:
            yield self._violation(Kind.REUSED, f"{offset} was given before, now again to {id_}")
        if id_ in self._at:
            yield self._violation(Kind.MOVED, f"{id_} was at {self._at[id_]} and is at {offset}")
        elif id_ not in self._sent:
            yield self._violation(Kind.PHANTOM, f"{id_} at {offset} was never sent here")
        self._known[offset] = id_
        self._at[id_] = offset
        self._next = max(self._next, offset + 1)

    def _wrong_ends(self, stored: Stored) -> Iterator[Violation]:
        low = max([self._start, *(d.start for d in self._deletions if d.acked)])
        next_ = max(self._next, low)
        if stored.next < next_:
            sentence = f"it ends before {stored.next}, {next_ - 1} was given out for good"
            yield self._violation(Kind.ENDS, sentence)
        high = max([low, *(d.start for d in self._deletions)])
        if not low <= stored.start <= high:
            sentence = f"it starts at {stored.start}, not within {low} to {high}"
            yield self._violation(Kind.ENDS, sentence)

    def _wrong_records(self, stored: Stored) -> Iterator[Violation]:
        offsets: set[int] = set()
        ids: set[Id] = set()
        numbers: dict[int, int] = {}
        previous = -1
        for offset, id_ in stored.records:
            if offset in offsets or id_ in ids:
                yield self._violation(Kind.DUPLICATE, f"{id_} at {offset}: one of them is twice")
            elif offset < previous:
                yield self._violation(Kind.ORDER, f"{offset} was read behind {previous}")
            elif id_[1] < numbers.get(id_[0], -1):
                sentence = f"{id_} at {offset} is behind number {numbers[id_[0]]} of its publisher"
                yield self._violation(Kind.ORDER, sentence)
            if not stored.start <= offset < stored.next:
                yield self._violation(Kind.ENDS, f"{offset} was read, beyond the partition's ends")
            yield from self._wrong_identity(offset, id_)
            offsets.add(offset)
            ids.add(id_)
            numbers[id_[0]] = id_[1]
            previous = offset

    def _wrong_identity(self, offset: int, id_: Id) -> Iterator[Violation]:
        expected = self._known.get(offset)
        if expected == id_:
            return
        if expected is not None:
            yield self._violation(Kind.REUSED, f"{offset} was {expected}, found {id_} there")
        elif id_ in self._at:
            yield self._violation(Kind.MOVED, f"{id_} was at {self._at[id_]}, found at {offset}")
        elif offset < self._end:
            yield self._violation(Kind.BACK, f"{offset} was gone, found {id_} there")
        elif id_ not in self._sent:
            yield self._violation(Kind.PHANTOM, f"{id_} at {offset} was never sent here")

    def _lost(self, found: dict[int, Id]) -> Iterator[Violation]:
        for offset, id_ in self._known.items():
            if offset not in found and not self._may_be_gone(offset):
                yield self._violation(Kind.LOST, f"{id_} at {offset} was acked or read")

    def _torn_runs(self, found: dict[int, Id]) -> Iterator[Violation]:
        """A run is one append: all of it is there, side by side, or nothing."""
        places = {id_: offset for offset, id_ in found.items()}
        for first, count in self._runs.items():
            ids = _ids(first, count)
            bases = {places[id_] - position for position, id_ in enumerate(ids) if id_ in places}
            if not bases:
                continue
            base = min(bases)
            missing = [
                base + position
                for position, id_ in enumerate(ids)
                if id_ not in places and not self._may_be_gone(base + position)
            ]
            if missing or len(bases) > 1:
                sentence = f"the run of {count} from {first} at {base} is only partly there"
                yield self._violation(Kind.TORN, sentence)

    def _wrong_deletions(self, found: dict[int, Id]) -> Iterator[Violation]:
        for deletion in self._deletions:
            there = [offset for offset in deletion.offsets if offset in found]
            if deletion.acked:
                for offset in there:
                    sentence = f"{found[offset]} at {offset} was deleted, acked, and is there"
                    yield self._violation(Kind.BACK, sentence)
            elif there and any(
                offset not in found and not self._may_be_gone(offset, besides=deletion)
                for offset in deletion.offsets & self._known.keys()
            ):
                sentence = f"a deletion of {len(deletion.offsets)} left {len(there)} of them there"
                yield self._violation(Kind.TORN, sentence)

    def _wrong_count(self, stored: Stored, found: dict[int, Id]) -> Iterator[Violation]:
        """The log's own count tells what it knows to be gone; any other gap is not recorded."""
        if stored.live != len(found):
            sentence = f"it says it has {stored.live} messages, {len(found)} were read"
            yield self._violation(Kind.HOLE, sentence)
        self.recorded_holes += sum(
            offset not in found and offset not in self._known and not self._may_be_gone(offset)
            for offset in range(max(stored.start, self._end), stored.next)
        )

    def _wrong_manifest(self, stored: Stored, found: dict[int, Id]) -> Iterator[Violation]:
        """Its objects follow one another, and have every message between their ends."""
        end = 0
        covered: dict[int, Held] = {}
        for held in stored.objects:
            if held.first < end:
                yield self._violation(Kind.MANIFEST, f"{held.key} begins before {end}")
            end = max(end, held.next)
            covered.update(dict.fromkeys(range(held.first, held.next), held))
        if end > stored.next:
            sentence = f"objects end at {end}, the log at {stored.next}"
            yield self._violation(Kind.MANIFEST, sentence)
        for offset, id_ in found.items():
            held_by = covered.get(offset)
            if held_by is None and offset < max(end, self._uploaded):
                sentence = f"no object has {offset}, {max(end, self._uploaded)} was uploaded"
                yield self._violation(Kind.MANIFEST, sentence)
            elif held_by is not None and held_by.rows.get(offset) != id_:
                sentence = f"{offset} is {id_}, in {held_by.key} {held_by.rows.get(offset)}"
                yield self._violation(Kind.OBJECT, sentence)

    def _wrong_promises(self, stored: Stored, found: dict[int, Id]) -> Iterator[Violation]:
        """What was acknowledged was in the manifest: messages and deletions."""
        for offset in sorted(self._in_bucket & found.keys()):
            if not any(held.first <= offset < held.next for held in stored.objects):
                yield self._violation(Kind.CLOUD, f"{offset} was acked, the manifest lacks it")
        for deletion in self._deletions:
            if not deletion.acked:
                continue
            if deletion.start > stored.manifest_start:
                sentence = f"the purge up to {deletion.start} was acked, the manifest lacks it"
                yield self._violation(Kind.CLOUD, sentence)
            for offset in sorted(deletion.offsets - stored.manifest_deleted):
                if offset >= stored.manifest_start:
                    sentence = f"the deletion of {offset} was acked, the manifest lacks it"
                    yield self._violation(Kind.CLOUD, sentence)

    def _may_be_gone(self, offset: int, besides: Deletion | None = None) -> bool:
        return any(d.covers(offset) for d in self._deletions if d is not besides)

    def _violation(self, kind: Kind, sentence: str) -> Violation:
        return Violation(kind, f"{self._place[0]} partition {self._place[1]}: {sentence}")


def _ids(first: Id, count: int) -> Iterable[Id]:
    publisher, number = first
    return [(publisher, number + position) for position in range(count)]
