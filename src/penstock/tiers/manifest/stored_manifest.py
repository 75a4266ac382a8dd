"""A manifest as it is stored in the metadata: the head, a record for each object and each link.

Entries and link records are numbered without gaps, and are valid only if their number is below the
one that the head names. Therefore a change that is too large for one transaction writes them before
the head; what an unfinished change has written is overwritten before it could become valid.

Delete vectors that are too large for the metadata are in the bucket, in an object of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from penstock.formats.objects import topic_prefix
from penstock.metadata import Metadata, MetadataKeys, read_all
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.objects import ObjectStore
from penstock.tiers.manifest.entries import (
    Head,
    LinkRecord,
    ObjectEntry,
    Transactions,
    decode_entry,
    decode_head,
    decode_link,
)

_VECTOR_BYTES: Final = 16
_START_BYTES: Final = 24
"""The JSON overhead of a delete vector, and the JSON size of a start."""


class ManifestLimits(NamedTuple):
    """Limits of what one transaction of a manifest contains."""

    inline_bytes_max: int = 256 << 10
    """Delete vectors and starts in the head; this leaves room for one large entry."""
    added_max: int = 100
    """Entries and link records; more are written before the head, and become valid with it."""


DEFAULT_LIMITS: Final = ManifestLimits()


@dataclass(frozen=True, slots=True)
class LinkRecords:
    """The stored link records: which number each application's last link has."""

    next_number: int = 0
    transactions: Transactions = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    unused: list[int] = field(default_factory=list)
    """Records that may be deleted: superseded ones, and those of forgotten applications."""

    @classmethod
    def of(cls, stored: Iterable[LinkRecord], next_number: int) -> LinkRecords:
        """The records below `next_number`; `stored` are ordered by number."""
        records = cls(next_number)
        for record in stored:
            if record.number < next_number:
                records._load(record)
        return records

    def _load(self, record: LinkRecord) -> None:
        app = record.app
        if app in self.transactions:
            self.unused.append(self.numbers.pop(app))
            del self.transactions[app]
        self.numbers[app] = record.number
        ranges = {r.partition: (r.first, r.next) for r in record.ranges}
        self.transactions[app] = (record.epoch, ranges)

    def updated(self, transactions: Transactions) -> tuple[LinkRecords, list[LinkRecord]]:
        """The records that store these transactions, and those of them that are not written yet."""
        if transactions is self.transactions:
            return self, []
        changed = [
            (app, link) for app, link in transactions.items() if self.transactions.get(app) != link
        ]
        new = [
            LinkRecord(number, app, epoch, [PartitionRange(p, *span) for p, span in ranges.items()])
            for number, (app, (epoch, ranges)) in enumerate(changed, self.next_number)
        ]
        numbers = self.numbers | {record.app: record.number for record in new}
        numbers = {app: numbers[app] for app in transactions}
        used = set(numbers.values())
        unused = self.unused + [n for n in self.numbers.values() if n not in used]
        return LinkRecords(self.next_number + len(new), transactions, numbers, unused), new


class StoredManifest(NamedTuple):
    """A manifest as read from the metadata; it may have changed between head and entries."""

    head: Head | None
    """With the transactions of all records; without delete vectors that are in an object."""
    revision: int
    entries: list[ObjectEntry]
    links: LinkRecords


async def read_manifest(metadata: Metadata, keys: MetadataKeys, topic: TopicName) -> StoredManifest:
    """Read the head, then the valid entries and link records; raises FormatError."""
    stored_head = await metadata.get(keys.manifest(topic))
    stored_entries = await read_all(metadata, keys.objects(topic))
    entries = [decode_entry(stored.value) for stored in stored_entries]
    if stored_head is None:
        return StoredManifest(None, 0, entries, LinkRecords())
    head = decode_head(stored_head.value)
    stored_links = await read_all(metadata, keys.links(topic))
    links = LinkRecords.of([decode_link(stored.value) for stored in stored_links], head.next_link)
    transactions = links.transactions
    if head.transactions:
        transactions = {**head.transactions, **transactions}
    head = msgspec.structs.replace(head, transactions=transactions)
    valid = [entry for entry in entries if entry.sequence < head.next_sequence]
    return StoredManifest(head, stored_head.mod_revision, valid, links)


def deletes_fit(head: Head, limits: ManifestLimits = DEFAULT_LIMITS) -> bool:
    """Whether the delete vectors fit into the head."""
    size = sum(len(vector) * 4 // 3 + _VECTOR_BYTES for vector in head.deletes.values())
    return not size or size + _START_BYTES * len(head.starts) <= limits.inline_bytes_max


async def put_deletes(store: ObjectStore, topic: TopicName, head: Head) -> Head:
    """Put the delete vectors into the bucket; returns the head that refers to their object."""
    key = f"{topic_prefix(topic)}deletes-{head.change}.msgpack"
    await store.put(key, [msgspec.msgpack.encode(head.deletes)])
    return msgspec.structs.replace(head, deletes={}, deletes_object=key)


async def get_deletes(store: ObjectStore, key: str) -> dict[int, bytes]:
    return msgspec.msgpack.decode(await store.get(key), type=dict[int, bytes])
