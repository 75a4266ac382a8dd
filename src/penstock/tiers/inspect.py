"""Look at objects and manifests without a broker: for the tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.formats import objects as form
from penstock.formats.objects import SUFFIX, ObjectFacts, topic_prefix
from penstock.host.entropy import unique_name
from penstock.metadata import (
    Compare,
    CompareTarget,
    DeleteKeys,
    Metadata,
    MetadataKeys,
    Put,
    chunks,
)
from penstock.model.errors import FormatError, PenstockError, VersionUnknown
from penstock.model.names import TopicName
from penstock.objects import ObjectInfo, ObjectMissing, ObjectStore
from penstock.tiers import entries as forms
from penstock.tiers import snapshot
from penstock.tiers.entries import MANIFEST_VERSION, Head, ObjectEntry, Snapshot
from penstock.tiers.stored import LinkRecords, deletes_fit, put_deletes, read


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """What an object says of itself and what is wrong with it."""

    key: str
    size_bytes: int
    facts: ObjectFacts | None
    problems: tuple[str, ...]


class ManifestExists(PenstockError):
    """A manifest is there; it is not replaced unless asked to."""

    code = "manifest_exists"


async def objects_of(store: ObjectStore, topic: TopicName) -> AsyncIterator[ObjectInfo]:
    """The data objects of a topic, in the order they were made."""
    async for info in store.list(f"{topic_prefix(topic)}data-"):
        if info.key.endswith(SUFFIX):
            yield info


async def check_object(
    store: ObjectStore, key: str, entry: ObjectEntry | None = None
) -> ObjectReport:
    """Read every byte of an object and compare it with its own words and the manifest's."""
    try:
        data = await store.get(key)
    except ObjectMissing:
        return ObjectReport(key, 0, None, ("it is missing",))
    problems: list[str] = []
    if entry is not None and (len(data) != entry.size or crc32c(data) != entry.crc32c):
        problems.append("its bytes are not those the manifest names")
    facts = None
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        if entry is not None and entry.linked:
            problems += _count_problems(file.metadata.num_rows, entry.rows)
        else:
            facts = form.facts_of(file.metadata)
            problems += _row_problems(file.read(columns=["partition", "offset"]), facts)
        file.read()
    except (FormatError, OSError, pa.ArrowException) as error:
        problems.append(f"it cannot be read: {error}")
    return ObjectReport(key, len(data), facts, tuple(problems))


def _count_problems(found: int, said: int) -> list[str]:
    return [] if found == said else [f"it has {found} rows and should have {said}"]


def _row_problems(table: pa.Table, facts: ObjectFacts) -> list[str]:
    problems = _count_problems(table.num_rows, facts.rows)
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    known = {span.partition: span for span in facts.ranges}
    for partition in np.unique(partitions).tolist():
        mine = offsets[partitions == partition]
        span = known.get(partition)
        if span is None or mine.min() < span.first or mine.max() >= span.next:
            problems.append(f"partition {partition} has offsets outside its range")
        if (np.diff(mine) <= 0).any():
            problems.append(f"partition {partition} has offsets out of order or twice")
    if (np.diff(partitions) < 0).any():
        problems.append("its partitions are out of order")
    return problems


async def load_manifest(
    metadata: Metadata, keys: MetadataKeys, topic: TopicName
) -> tuple[Head | None, list[ObjectEntry]]:
    """The manifest as it is in the metadata, None when there is none."""
    found = await read(metadata, keys, topic)
    return found.head, found.entries


async def rebuild(store: ObjectStore, topic: TopicName) -> Snapshot:
    """The manifest as the bucket alone tells it: newest snapshot and the objects made since."""
    base = await snapshot.newest(store, topic)
    later = []
    async for info in objects_of(store, topic):
        entry = await _entry_of(store, info)
        if entry is not None and (base is None or entry.next_frame > base.head.uploaded_frame):
            later.append(entry)
    return snapshot.rebuilt(base, Head(topic=str(topic)), later)


async def install(
    metadata: Metadata,
    keys: MetadataKeys,
    store: ObjectStore,
    topic: TopicName,
    content: Snapshot,
    replace: bool,
) -> None:
    """Make a rebuilt manifest the manifest; raises ManifestExists unless it may be replaced."""
    key = keys.manifest(topic)
    before = await metadata.get(key)
    if before is not None and not replace:
        raise ManifestExists(f"topic {topic} has a manifest; say --replace to replace it")
    links, linked = LinkRecords().tell(content.head.transactions)
    head = msgspec.structs.replace(
        content.head,
        version=MANIFEST_VERSION,
        change=unique_name(),
        deletes_object=None,
        transactions={},
        next_link=links.next_number,
    )
    if not deletes_fit(head):
        head = await put_deletes(store, topic, head)
    unowned = Compare(keys.owner(topic), CompareTarget.CREATE_REVISION, 0)
    revision = before.mod_revision if before else 0
    # The head goes first and comes last: a manifest that is half there is refused by who loads it.
    # What waited in the trash, or to be completed, may be what the new manifest names.
    prefixes = (
        keys.objects(topic),
        keys.links(topic),
        f"{keys.upload_session(topic)}/",
        keys.trash(topic),
    )
    cleared = [DeleteKeys(key), *(DeleteKeys(prefix, prefix=True) for prefix in prefixes)]
    puts = [Put(keys.object(topic, e.sequence), forms.encode(e)) for e in content.entries]
    puts += [Put(keys.link(topic, record.number), forms.encode(record)) for record in linked]
    steps: list[Sequence[Put | DeleteKeys]] = [
        cleared,
        *chunks(puts),
        [Put(key, forms.encode(head))],
    ]
    for step in steps:
        guards = [unowned, Compare(key, CompareTarget.MOD_REVISION, revision)]
        if not (await metadata.transaction(guards, step)).succeeded:
            raise ManifestExists(f"topic {topic} is in use by a broker; stop it first")
        revision = 0


async def _entry_of(store: ObjectStore, info: ObjectInfo) -> ObjectEntry | None:
    """An entry made from the object itself; None when it is not whole."""
    data = await store.get(info.key)
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        facts = form.facts_of(metadata)
    except VersionUnknown:
        raise
    except (FormatError, OSError, pa.ArrowException):
        return None
    created = int(info.key.rpartition("/")[2].split("-")[1])
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    raw_size = sum(group.total_byte_size for group in groups)
    entry = forms.entry_of(info.key, facts, data, created, store.backend, 0, raw_size)
    return msgspec.structs.replace(entry, etag=info.etag)
