"""The manifest of a topic: which offsets are in which object, what is deleted, where the log
starts.

The one truth about the tiers. Only the owner changes it, by transactions that compare the owner's
epoch and the head they were made from; one whose reply was lost is recognised by the name of its
change. Objects that no longer count go to the trash with a time of grace, so that readers in flight
and deposed owners harm nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import structlog

from penstock.formats.objects import topic_prefix
from penstock.metadata import (
    OPERATIONS_MAX,
    Compare,
    CompareTarget,
    DeleteKeys,
    Metadata,
    MetadataKeys,
    MetadataUnavailable,
    Put,
    TransactionResult,
    chunks,
    fits,
)
from penstock.model.errors import FormatError, PenstockError
from penstock.model.names import TopicName
from penstock.objects import ObjectMissing, ObjectStore
from penstock.tiers import entries as forms
from penstock.tiers.entries import (
    MANIFEST_VERSION,
    EntryIndex,
    Head,
    ObjectEntry,
    Session,
    Trash,
)
from penstock.tiers.stored import (
    LinkRecords,
    deletes_fit,
    everything,
    get_deletes,
    put_deletes,
    read,
)

REMOVED_MAX: Final = (OPERATIONS_MAX - 4) // 2
"""Entries that one transaction can take out: each is a deletion and a piece of trash."""

ADDED_MAX: Final = 100
"""Entries and records of links that go into one transaction; where there are more, they are laid
down before the head, and count with it.
"""

UNANSWERED_KEPT: Final = 8
"""Changes without an answer that are remembered, in case they come through late."""

_events = structlog.get_logger(__name__)


class Deposed(PenstockError):
    """Another broker owns the topic, or changed its manifest; this one must stop writing."""

    code = "manifest_deposed"

    def __init__(self, topic: TopicName) -> None:
        super().__init__(f"topic {topic}: this broker no longer owns it")
        self.topic = topic


class Manifest:
    """A topic's manifest as its owner sees it; every change is one transaction."""

    def __init__(
        self,
        metadata: Metadata,
        keys: MetadataKeys,
        topic: TopicName,
        store: ObjectStore,
        guard: Compare,
    ) -> None:
        self._metadata, self._keys, self._topic = metadata, keys, topic
        self._store = store
        self._guard = guard
        self._revision = 0
        self._unanswered: deque[str] = deque(maxlen=UNANSWERED_KEPT)
        self.doubtful = False
        """Whether the last change was not answered: `load` tells what became of it."""
        self.noted: dict[str, int] = {}
        """Objects whose uploads are on record, as far as we know, and the revisions of the records.
        """
        self.removing = asyncio.Lock()
        """Held while objects in the trash are removed."""
        self.claimed: Counter[str] = Counter()
        """Objects that are being linked, and by how many: they do not go to the trash."""
        self.head = Head(topic=str(topic))
        self.index = EntryIndex()
        self._links = LinkRecords()

    async def load(self, with_deletes: bool = True) -> None:
        """Read it as it is now; delete vectors in the bucket only if they are wanted and new.

        When a change comes through while entries are read, the next commit finds the head changed,
        and reads everything again.
        """
        stored = await read(self._metadata, self._keys, self._topic)
        if stored.head is None and stored.entries:
            raise FormatError(f"the manifest of topic {self._topic} has objects but no head")
        head = stored.head or Head(topic=str(self._topic))
        if head.deletes_object is not None:
            deletes = self.head.deletes
            if head.deletes_object != self.head.deletes_object:
                deletes = (
                    await get_deletes(self._store, head.deletes_object) if with_deletes else {}
                )
            head = msgspec.structs.replace(head, deletes=deletes)
        self._revision, self.head, self._links = stored.revision, head, stored.links
        self.index = EntryIndex(stored.entries)
        self._not_noted(self.index)
        self.doubtful = False

    @property
    def lacks_deletes(self) -> bool:
        """Whether there are delete vectors in the bucket that were not read."""
        return self.head.deletes_object is not None and not self.head.deletes

    async def commit(
        self,
        head: Head,
        added: Sequence[ObjectEntry] = (),
        removed: Sequence[ObjectEntry] = (),
        trash_until_us: int = 0,
    ) -> None:
        """Make `head` the head and change the entries with it, all or nothing.

        The records of the uploads of the added entries are removed too. Raises Deposed when the
        topic is not ours any more. When the store does not answer (MetadataUnavailable) the same
        call may be made again: a change that did go through is recognised. To make another one,
        `load` first.
        """
        links, linked = self._links.tell(head.transactions)
        stored = msgspec.structs.replace(
            await self._offload(head),
            version=MANIFEST_VERSION,
            transactions={},
            next_link=links.next_number,
        )
        head_key = self._keys.manifest(self._topic)
        unused = self._unused(removed)
        if self.head.deletes_object not in (None, stored.deletes_object):
            unused.append(self.head.deletes_object)
        replaced = {entry.sequence for entry in added}
        noted = [entry for entry in added if entry.object_id in self.noted]
        compares = [
            self._guard,
            Compare(head_key, CompareTarget.MOD_REVISION, self._revision),
            *map(self._as_noted, noted),
        ]
        changes: list[Put | DeleteKeys] = [
            Put(head_key, forms.encode(stored)),
            *(DeleteKeys(self._key(entry)) for entry in removed if entry.sequence not in replaced),
            *(self._to_trash(object_id, trash_until_us) for object_id in unused),
            *(DeleteKeys(self._session_key(entry)) for entry in noted),
        ]
        # What takes the place of another counts at once.
        count = self.head.next_sequence
        changes += [self._put(entry) for entry in added if entry.sequence < count]
        later = [self._put(entry) for entry in added if entry.sequence >= count]
        later += [Put(self._link_key(record.number), forms.encode(record)) for record in linked]
        room = max(OPERATIONS_MAX - len(changes) - len(later), 0)
        changes += [DeleteKeys(self._link_key(number)) for number in links.unused[:room]]
        self.doubtful = True
        self._unanswered.append(stored.change)
        outcome = await self._transaction(compares, changes, later)
        self._unanswered.pop()
        if not outcome.succeeded:
            await self._settle(stored)
            return
        self.doubtful = False
        self._revision = outcome.revision
        self._links = replace(links, unused=links.unused[room:])
        head = msgspec.structs.replace(stored, deletes=head.deletes, transactions=links.told)
        self._take(head, added, removed)

    async def _transaction(
        self,
        compares: Sequence[Compare],
        changes: Sequence[Put | DeleteKeys],
        later: Sequence[Put],
    ) -> TransactionResult:
        """All or nothing: `later` ones that do not fit in count once the head's is made."""
        if len(later) <= ADDED_MAX and fits(compares, [*changes, *later]):
            return await self._metadata.transaction(compares, [*changes, *later])
        for some in chunks(later, ADDED_MAX):
            outcome = await self._metadata.transaction(compares, some)
            if not outcome.succeeded:
                return outcome
        return await self._metadata.transaction(compares, changes)

    async def _settle(self, wanted: Head) -> None:
        """A refused transaction: ours after all when an earlier try of it went through."""
        await self.load()
        if self.head.change == wanted.change:
            return
        if self.head.change in self._unanswered:
            self._unanswered.remove(self.head.change)
            raise MetadataUnavailable("an earlier change came through late; make this one again")
        raise Deposed(self._topic)

    async def remove_uncounted(self) -> None:
        """Remove entries that a former owner wrote for a change it never made; raises Deposed.

        To be called before sequence numbers are skipped, since these would count then.
        """
        prefix = self._keys.objects(self._topic)
        first = self._keys.object(self._topic, self.head.next_sequence)
        found = await everything(self._metadata, prefix)
        await self._guarded([DeleteKeys(entry.key) for entry in found if entry.key >= first])

    async def note_session(self, session: Session) -> None:
        """Record an upload before it begins; raises Deposed."""
        entry = session.entry
        self.noted[entry.object_id] = 0
        record = Put(self._session_key(entry), forms.encode(session))
        outcome = await self._metadata.transaction([self._guard], [record])
        if not outcome.succeeded:
            raise Deposed(self._topic)
        self.noted[entry.object_id] = outcome.revision

    async def sessions(self) -> list[Session]:
        """Uploads that are on record, oldest first."""
        records = await everything(self._metadata, f"{self._keys.upload_session(self._topic)}/")
        found = [forms.decode_session(entry.value) for entry in records]
        for session, entry in zip(found, records, strict=True):
            self.noted[session.entry.object_id] = entry.mod_revision
        return found

    async def give_up(self, session: Session, trash_until_us: int) -> bool:
        """Let nobody complete an upload any more, neither a successor nor a commit of ours without
        an answer; False if one has, or we are deposed.

        Only then may its object be removed.
        """
        entry = session.entry
        changes: list[Put | DeleteKeys] = [
            DeleteKeys(self._session_key(entry)),
            self._to_trash(entry.object_id, trash_until_us, unfinished=True),
        ]
        outcome = await self._metadata.transaction([self._guard, self._as_noted(entry)], changes)
        self.noted.pop(entry.object_id, None)
        return outcome.succeeded

    async def claim(self, object_ids: Collection[str], due_us: int) -> None:
        """Take these out of the trash, to link them: they may have been linked before.

        Raises Deposed, and ObjectMissing for one that may be removed by `due_us`: whoever empties
        the trash may be about to do that, even an owner before us.
        """
        async with self.removing:
            found = [item for item in await self.trash() if item.object_id in object_ids]
            for item in found:
                if item.until_us <= due_us:
                    raise ObjectMissing(item.object_id)
            await self._guarded([DeleteKeys(self._trash_key(item.object_id)) for item in found])

    async def _guarded(self, changes: Sequence[DeleteKeys]) -> None:
        """Changes of an owner that need not be made together."""
        for start in range(0, len(changes), OPERATIONS_MAX):
            some = changes[start : start + OPERATIONS_MAX]
            if not (await self._metadata.transaction([self._guard], some)).succeeded:
                raise Deposed(self._topic)

    async def trash(self) -> list[Trash]:
        """Objects that no longer count."""
        found = await everything(self._metadata, self._keys.trash(self._topic))
        return [forms.decode_trash(entry.value) for entry in found]

    async def emptied(self, items: Iterable[Trash]) -> None:
        """These objects have been removed; raises Deposed."""
        await self._guarded([DeleteKeys(self._trash_key(item.object_id)) for item in items])

    def _take(
        self, head: Head, added: Sequence[ObjectEntry], removed: Sequence[ObjectEntry]
    ) -> None:
        self.head = head
        self._not_noted(added)
        last = max((entry.sequence for entry in self.index), default=-1)
        if not removed and all(entry.sequence > last for entry in added):
            for entry in added:
                self.index.add(entry)
            return
        gone = {entry.sequence for entry in removed}
        left = [entry for entry in self.index if entry.sequence not in gone]
        self.index = EntryIndex(sorted([*left, *added], key=lambda entry: entry.sequence))

    def _unused(self, removed: Sequence[ObjectEntry]) -> list[str]:
        """Objects that nothing names any more; the same rows may have been linked twice, or are
        being linked now.
        """
        gone = {entry.sequence for entry in removed}
        left = {entry.object_id for entry in self.index if entry.sequence not in gone}
        return sorted({entry.object_id for entry in removed} - left - self.claimed.keys())

    async def _offload(self, head: Head) -> Head:
        if head.deletes == self.head.deletes and self.head.deletes_object is not None:
            return msgspec.structs.replace(
                head, deletes={}, deletes_object=self.head.deletes_object
            )
        if deletes_fit(head):
            return msgspec.structs.replace(head, deletes_object=None)
        return await put_deletes(self._store, self._topic, head)

    def _put(self, entry: ObjectEntry) -> Put:
        return Put(self._key(entry), forms.encode(entry))

    def _key(self, entry: ObjectEntry) -> str:
        return self._keys.object(self._topic, entry.sequence)

    def _link_key(self, number: int) -> str:
        return self._keys.link(self._topic, number)

    def _to_trash(self, object_id: str, until_us: int, unfinished: bool = False) -> Put:
        trash = Trash(object_id, until_us, unfinished)
        return Put(self._trash_key(object_id), forms.encode(trash))

    def _session_key(self, entry: ObjectEntry) -> str:
        name = entry.object_id.rpartition("/")[2]
        return f"{self._keys.upload_session(self._topic)}/{entry.sequence:020d}-{name}"

    def _as_noted(self, entry: ObjectEntry) -> Compare:
        """Holds while the record of the entry's upload is the one we know."""
        revision = self.noted[entry.object_id]
        return Compare(self._session_key(entry), CompareTarget.MOD_REVISION, revision)

    def _not_noted(self, entries: Iterable[ObjectEntry]) -> None:
        """Their uploads are committed, and no longer on record."""
        for entry in entries:
            self.noted.pop(entry.object_id, None)

    def _trash_key(self, object_id: str) -> str:
        name = object_id.removeprefix(topic_prefix(self._topic))
        return f"{self._keys.trash(self._topic)}{name}"
