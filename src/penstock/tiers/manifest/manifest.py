"""The manifest of a topic: which offsets are in which object, the deletions, the log start offsets.

It is the only truth about the tiers. Only the owner changes it, by transactions that compare the
owner's epoch and the head that the change is based on; a change whose reply was lost is identified
by its unique name. Objects that leave the manifest go to the trash for a grace time, so that
readers in flight finish and deposed owners do no harm.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import msgspec

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
    read_all,
)
from penstock.model.errors import FormatError, PenstockError
from penstock.model.names import TopicName
from penstock.objects import ObjectMissing, ObjectStore
from penstock.tiers.manifest.entries import (
    MANIFEST_VERSION,
    Head,
    ObjectEntry,
    Trash,
    UploadSession,
    are_separated,
    decode_session,
    decode_trash,
    encode_record,
)
from penstock.tiers.manifest.entry_index import EntryIndex
from penstock.tiers.manifest.stored_manifest import (
    DEFAULT_LIMITS,
    LinkRecords,
    ManifestLimits,
    deletes_fit,
    get_deletes,
    put_deletes,
    read_manifest,
)

REMOVED_MAX: Final = (OPERATIONS_MAX - 4) // 2
"""Entries that one transaction can remove: each takes a deletion and a trash record."""

UNANSWERED_MAX: Final = 8
"""Unanswered changes that are remembered, because they may take effect late."""


class Deposed(PenstockError):
    """Another broker owns the topic, or changed its manifest; this one must stop writing."""

    code = "manifest_deposed"

    def __init__(self, topic: TopicName) -> None:
        super().__init__(f"topic {topic}: this broker no longer owns it")
        self.topic = topic


class Manifest:
    """A topic's manifest as its owner knows it; every change is one transaction."""

    def __init__(
        self,
        metadata: Metadata,
        keys: MetadataKeys,
        topic: TopicName,
        store: ObjectStore,
        guard: Compare,
        limits: ManifestLimits = DEFAULT_LIMITS,
    ) -> None:
        """`guard` holds while this broker owns the topic."""
        self._metadata, self._keys, self._topic = metadata, keys, topic
        self._store = store
        self._guard, self._limits = guard, limits
        self._revision = 0
        self._unanswered: deque[str] = deque(maxlen=UNANSWERED_MAX)
        self.doubtful = False
        """Whether the last change was not answered; `load` finds out whether it was made."""
        self.sessions_recorded: dict[str, int] = {}
        """Objects whose uploads are recorded, and the revisions of their records; 0: unknown."""
        self.removing = asyncio.Lock()
        """Held while objects in the trash are deleted."""
        self.claimed: Counter[str] = Counter()
        """Objects that links in progress refer to, and how many: they must not go to the trash."""
        self.head = Head(topic=str(topic))
        self.index = EntryIndex()
        self._links = LinkRecords()

    async def load(self, with_deletes: bool = True) -> None:
        """Read the current manifest; delete vectors in the bucket only if `with_deletes` and new.

        If a change is made while the entries are read, the next commit finds another head and loads
        again.
        """
        stored = await read_manifest(self._metadata, self._keys, self._topic)
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
        self._forget_sessions(self.index)
        self.doubtful = False

    @property
    def lacks_deletes(self) -> bool:
        """Whether there are delete vectors in the bucket that were not read."""
        return self.head.deletes_object is not None and not self.head.deletes

    def objects_after_gaps(self) -> frozenset[str]:
        """The first object after each open gap."""
        ordered = self.index.ordered() if self.head.gaps else []
        return frozenset(
            entry.object_id
            for before, entry in pairwise(ordered)
            if are_separated([before, entry], self.head.gaps)
        )

    # -- changes of the head and the entries

    async def commit(
        self,
        head: Head,
        added: Sequence[ObjectEntry] = (),
        removed: Sequence[ObjectEntry] = (),
        trash_until_us: int = 0,
    ) -> None:
        """Replace the head and change the entries, all or nothing.

        Also deletes the upload records of the added entries. Raises Deposed if this broker no
        longer owns the topic. If the store does not answer (MetadataUnavailable), the same call may
        be repeated: a change that was made is recognised. Before another change, call `load`.
        """
        links, new_links = self._links.updated(head.transactions)
        stored_head = msgspec.structs.replace(
            await self._offload_deletes(head),
            version=MANIFEST_VERSION,
            transactions={},
            next_link=links.next_number,
        )
        recorded = [entry for entry in added if entry.object_id in self.sessions_recorded]
        compares = [
            self._guard,
            Compare(self._keys.manifest(self._topic), CompareTarget.MOD_REVISION, self._revision),
            *map(self._session_unchanged, recorded),
        ]
        changes = self._head_changes(stored_head, added, removed, recorded, trash_until_us)
        # An entry that replaces another is valid at once; a new one only with the new head.
        count = self.head.next_sequence
        changes += [self._put_entry(entry) for entry in added if entry.sequence < count]
        new_records = [self._put_entry(entry) for entry in added if entry.sequence >= count]
        new_records += [
            Put(self._link_key(record.number), encode_record(record)) for record in new_links
        ]
        room = max(OPERATIONS_MAX - len(changes) - len(new_records), 0)
        changes += [DeleteKeys(self._link_key(number)) for number in links.unused[:room]]
        self.doubtful = True
        self._unanswered.append(stored_head.change)
        outcome = await self._transaction(compares, changes, new_records)
        self._unanswered.pop()
        if not outcome.succeeded:
            await self._resolve_refusal(stored_head)
            return
        self.doubtful = False
        self._revision = outcome.revision
        self._links = replace(links, unused=links.unused[room:])
        head = msgspec.structs.replace(
            stored_head, deletes=head.deletes, transactions=links.transactions
        )
        self._apply(head, added, removed)

    def _head_changes(
        self,
        stored_head: Head,
        added: Sequence[ObjectEntry],
        removed: Sequence[ObjectEntry],
        recorded: Sequence[ObjectEntry],
        trash_until_us: int,
    ) -> list[Put | DeleteKeys]:
        """The changes that must be made in the same transaction as that of the head."""
        unused = self._unused_objects(removed)
        if self.head.deletes_object not in (None, stored_head.deletes_object):
            unused.append(self.head.deletes_object)
        replaced = {entry.sequence for entry in added}
        return [
            Put(self._keys.manifest(self._topic), encode_record(stored_head)),
            *(
                DeleteKeys(self._entry_key(entry))
                for entry in removed
                if entry.sequence not in replaced
            ),
            *(self._put_trash(object_id, trash_until_us) for object_id in unused),
            *(DeleteKeys(self._session_key(entry)) for entry in recorded),
        ]

    async def _transaction(
        self,
        compares: Sequence[Compare],
        changes: Sequence[Put | DeleteKeys],
        new_records: Sequence[Put],
    ) -> TransactionResult:
        """Make all changes or none. New records that do not fit are written before: they are
        valid only with the new head.
        """
        if len(new_records) <= self._limits.added_max and fits(compares, [*changes, *new_records]):
            return await self._metadata.transaction(compares, [*changes, *new_records])
        for chunk in chunks(new_records, self._limits.added_max):
            outcome = await self._metadata.transaction(compares, chunk)
            if not outcome.succeeded:
                return outcome
        return await self._metadata.transaction(compares, changes)

    async def _resolve_refusal(self, refused: Head) -> None:
        """Find out whether a refused change was already made by an earlier attempt."""
        await self.load()
        if self.head.change == refused.change:
            return
        if self.head.change in self._unanswered:
            self._unanswered.remove(self.head.change)
            raise MetadataUnavailable("an earlier change came through late; make this one again")
        raise Deposed(self._topic)

    def _apply(
        self, head: Head, added: Sequence[ObjectEntry], removed: Sequence[ObjectEntry]
    ) -> None:
        self.head = head
        self._forget_sessions(added)
        last = max((entry.sequence for entry in self.index), default=-1)
        if not removed and all(entry.sequence > last for entry in added):
            for entry in added:
                self.index.add(entry)
            return
        removed_sequences = {entry.sequence for entry in removed}
        remaining = [entry for entry in self.index if entry.sequence not in removed_sequences]
        ordered = sorted([*remaining, *added], key=lambda entry: entry.sequence)
        self.index = EntryIndex(ordered)

    def _unused_objects(self, removed: Sequence[ObjectEntry]) -> list[str]:
        """Objects of removed entries that no other entry names and no link in progress claims."""
        removed_sequences = {entry.sequence for entry in removed}
        named = {entry.object_id for entry in self.index if entry.sequence not in removed_sequences}
        return sorted({entry.object_id for entry in removed} - named - self.claimed.keys())

    async def _offload_deletes(self, head: Head) -> Head:
        """The head as it is stored: large delete vectors are replaced by their object's key."""
        if head.deletes == self.head.deletes and self.head.deletes_object is not None:
            return msgspec.structs.replace(
                head, deletes={}, deletes_object=self.head.deletes_object
            )
        if self.has_room_for_deletes(head):
            return msgspec.structs.replace(head, deletes_object=None)
        return await put_deletes(self._store, self._topic, head)

    def has_room_for_deletes(self, head: Head) -> bool:
        """Whether the head is stored with its delete vectors, without an object for them."""
        return deletes_fit(head, self._limits)

    async def remove_invalid_entries(self) -> None:
        """Remove entries that a former owner wrote for a change that it never made; raises Deposed.

        Must be called before sequence numbers are skipped, which would make them valid.
        """
        prefix = self._keys.objects(self._topic)
        first = self._keys.object(self._topic, self.head.next_sequence)
        stored = await read_all(self._metadata, prefix)
        await self._delete([DeleteKeys(entry.key) for entry in stored if entry.key >= first])

    # -- upload records

    async def record_session(self, session: UploadSession) -> None:
        """Record an upload before it begins; raises Deposed."""
        entry = session.entry
        self.sessions_recorded[entry.object_id] = 0
        record = Put(self._session_key(entry), encode_record(session))
        outcome = await self._metadata.transaction([self._guard], [record])
        if not outcome.succeeded:
            raise Deposed(self._topic)
        self.sessions_recorded[entry.object_id] = outcome.revision

    async def sessions(self) -> list[UploadSession]:
        """The recorded uploads, oldest first."""
        records = await read_all(self._metadata, f"{self._keys.upload_session(self._topic)}/")
        sessions = [decode_session(record.value) for record in records]
        for session, record in zip(sessions, records, strict=True):
            self.sessions_recorded[session.entry.object_id] = record.mod_revision
        return sessions

    async def abandon_session(self, session: UploadSession, trash_until_us: int) -> bool:
        """Ensure that nobody completes an upload any more: no successor, and no unanswered commit.

        Returns False if it was completed, or if this broker was deposed. Only after True may the
        object be deleted.
        """
        entry = session.entry
        changes: list[Put | DeleteKeys] = [
            DeleteKeys(self._session_key(entry)),
            self._put_trash(entry.object_id, trash_until_us, unfinished=True),
        ]
        outcome = await self._metadata.transaction(
            [self._guard, self._session_unchanged(entry)], changes
        )
        self.sessions_recorded.pop(entry.object_id, None)
        return outcome.succeeded

    def _session_unchanged(self, entry: ObjectEntry) -> Compare:
        """Holds while the record of the entry's upload is the known one."""
        revision = self.sessions_recorded[entry.object_id]
        return Compare(self._session_key(entry), CompareTarget.MOD_REVISION, revision)

    def _forget_sessions(self, entries: Iterable[ObjectEntry]) -> None:
        """Forget the upload records of entries that are in the manifest."""
        for entry in entries:
            self.sessions_recorded.pop(entry.object_id, None)

    # -- trash

    async def claim(self, object_ids: Collection[str], due_us: int) -> None:
        """Take objects out of the trash that are to be linked: they may have been linked before.

        Raises Deposed, and ObjectMissing for an object that may be deleted by `due_us`: an owner,
        even a former one, may be about to do that.
        """
        async with self.removing:
            claimed = [item for item in await self.trash() if item.object_id in object_ids]
            for item in claimed:
                if item.until_us <= due_us:
                    raise ObjectMissing(item.object_id)
            await self._delete([DeleteKeys(self._trash_key(item.object_id)) for item in claimed])

    async def trash(self) -> list[Trash]:
        """Objects that are no longer in the manifest and not deleted yet."""
        stored = await read_all(self._metadata, self._keys.trash(self._topic))
        return [decode_trash(entry.value) for entry in stored]

    async def forget_trash(self, items: Iterable[Trash]) -> None:
        """Delete the trash records of objects that have been deleted; raises Deposed."""
        await self._delete([DeleteKeys(self._trash_key(item.object_id)) for item in items])

    async def _delete(self, changes: Sequence[DeleteKeys]) -> None:
        """Delete records in as many transactions as necessary; raises Deposed."""
        for start in range(0, len(changes), OPERATIONS_MAX):
            chunk = changes[start : start + OPERATIONS_MAX]
            if not (await self._metadata.transaction([self._guard], chunk)).succeeded:
                raise Deposed(self._topic)

    # -- keys

    def _put_entry(self, entry: ObjectEntry) -> Put:
        return Put(self._entry_key(entry), encode_record(entry))

    def _put_trash(self, object_id: str, until_us: int, unfinished: bool = False) -> Put:
        trash = Trash(object_id, until_us, unfinished)
        return Put(self._trash_key(object_id), encode_record(trash))

    def _entry_key(self, entry: ObjectEntry) -> str:
        return self._keys.object(self._topic, entry.sequence)

    def _link_key(self, number: int) -> str:
        return self._keys.link(self._topic, number)

    def _session_key(self, entry: ObjectEntry) -> str:
        name = entry.object_id.rpartition("/")[2]
        return f"{self._keys.upload_session(self._topic)}/{entry.sequence:020d}-{name}"

    def _trash_key(self, object_id: str) -> str:
        name = object_id.removeprefix(topic_prefix(self._topic))
        return f"{self._keys.trash(self._topic)}{name}"
