"""A manifest as it lies in the metadata: the head, an entry an object, a record an application.

Entries and records have numbers without a hole, and count from the moment the head names a number
above theirs. So they may be laid down before the head where one transaction does not take them all:
what a change that was never made left there is written over before it could count.

Delete vectors that are too large for the metadata lie in the bucket, in an object of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from penstock.formats.objects import topic_prefix
from penstock.metadata import Metadata, MetadataEntry, MetadataKeys
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.objects import ObjectStore
from penstock.tiers import entries as forms
from penstock.tiers.entries import Head, LinkRecord, ObjectEntry, Transactions

INLINE_BYTES_MAX: Final = 256 << 10
"""Of delete vectors and starts in the head: an entry of all partitions must fit in beside it."""
_VECTOR_BYTES: Final = 16
_START_BYTES: Final = 24
"""What a vector takes in JSON beside its bytes, and what a start takes."""


@dataclass(frozen=True, slots=True)
class LinkRecords:
    """Which records tell of which applications."""

    next_number: int = 0
    told: Transactions = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    unused: list[int] = field(default_factory=list)
    """Records that may go: there are later ones of their applications, or these are forgotten."""

    @classmethod
    def of(cls, found: Iterable[LinkRecord], next_number: int) -> LinkRecords:
        """Those that count, of the ones that are there, in the order of their numbers."""
        records = cls(next_number)
        for record in found:
            if record.number < next_number:
                records._take(record)
        return records

    def _take(self, record: LinkRecord) -> None:
        app = record.app
        if app in self.told:
            self.unused.append(self.numbers.pop(app))
            del self.told[app]
        self.numbers[app] = record.number
        self.told[app] = (record.epoch, {r.partition: (r.first, r.next) for r in record.ranges})

    def tell(self, wanted: Transactions) -> tuple[LinkRecords, list[LinkRecord]]:
        """The records that tell this, and those of them that are to be written first."""
        if wanted is self.told:
            return self, []
        changed = [(app, done) for app, done in wanted.items() if self.told.get(app) != done]
        new = [
            LinkRecord(number, app, epoch, [PartitionRange(p, *span) for p, span in ranges.items()])
            for number, (app, (epoch, ranges)) in enumerate(changed, self.next_number)
        ]
        numbers = self.numbers | {record.app: record.number for record in new}
        numbers = {app: numbers[app] for app in wanted}
        used = set(numbers.values())
        unused = self.unused + [n for n in self.numbers.values() if n not in used]
        return LinkRecords(self.next_number + len(new), wanted, numbers, unused), new


class Stored(NamedTuple):
    """What was found of a manifest; it may have changed between head and entries."""

    head: Head | None
    """With the transactions of all records; without delete vectors that lie in an object."""
    revision: int
    entries: list[ObjectEntry]
    links: LinkRecords


async def read(metadata: Metadata, keys: MetadataKeys, topic: TopicName) -> Stored:
    """What is there now, the head once and first; raises FormatError."""
    found = await metadata.get(keys.manifest(topic))
    stored = await everything(metadata, keys.objects(topic))
    entries = [forms.decode_entry(entry.value) for entry in stored]
    if found is None:
        return Stored(None, 0, entries, LinkRecords())
    head = forms.decode_head(found.value)
    told = await everything(metadata, keys.links(topic))
    links = LinkRecords.of([forms.decode_link(entry.value) for entry in told], head.next_link)
    transactions = {**head.transactions, **links.told} if head.transactions else links.told
    head = msgspec.structs.replace(head, transactions=transactions)
    counting = [entry for entry in entries if entry.sequence < head.next_sequence]
    return Stored(head, found.mod_revision, counting, links)


async def everything(metadata: Metadata, prefix: str) -> list[MetadataEntry]:
    """All entries below the prefix, page by page."""
    found: list[MetadataEntry] = []
    while True:
        page = await metadata.range(prefix, found[-1].key if found else "")
        found += page.entries
        if not page.more:
            return found


def deletes_fit(head: Head) -> bool:
    """Whether the delete vectors need no object of their own."""
    size = sum(len(vector) * 4 // 3 + _VECTOR_BYTES for vector in head.deletes.values())
    return not size or size + _START_BYTES * len(head.starts) <= INLINE_BYTES_MAX


async def put_deletes(store: ObjectStore, topic: TopicName, head: Head) -> Head:
    """Lay the delete vectors into the bucket; the head that names them there."""
    key = f"{topic_prefix(topic)}deletes-{head.change}.msgpack"
    await store.put(key, [msgspec.msgpack.encode(head.deletes)])
    return msgspec.structs.replace(head, deletes={}, deletes_object=key)


async def get_deletes(store: ObjectStore, key: str) -> dict[int, bytes]:
    return msgspec.msgpack.decode(await store.get(key), type=dict[int, bytes])
