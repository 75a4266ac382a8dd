"""Rebuilds the manifest of a topic from its bucket alone, without a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats import objects as form
from penstock.formats.objects import SUFFIX, topic_prefix
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
from penstock.objects import ObjectInfo, ObjectStore
from penstock.tiers.manifest import snapshot
from penstock.tiers.manifest.entries import (
    MANIFEST_VERSION,
    Head,
    ObjectEntry,
    Snapshot,
    encode_record,
    new_entry,
)
from penstock.tiers.manifest.stored_manifest import (
    LinkRecords,
    deletes_fit,
    put_deletes,
    read_manifest,
)


class ManifestExists(PenstockError):
    """The topic has a manifest, which may not be replaced."""

    code = "manifest_exists"


async def load_manifest(
    metadata: Metadata, keys: MetadataKeys, topic: TopicName
) -> tuple[Head | None, list[ObjectEntry]]:
    """The manifest in the metadata; the head is None if there is none."""
    stored = await read_manifest(metadata, keys, topic)
    return stored.head, stored.entries


async def data_objects(store: ObjectStore, topic: TopicName) -> AsyncIterator[ObjectInfo]:
    """The data objects of a topic, in the order of their creation."""
    async for info in store.list(f"{topic_prefix(topic)}data-"):
        if info.key.endswith(SUFFIX):
            yield info


async def rebuild_manifest(store: ObjectStore, topic: TopicName) -> Snapshot:
    """The manifest according to the bucket: its newest snapshot and the objects written since."""
    base = await snapshot.newest(store, topic)
    later = []
    async for info in data_objects(store, topic):
        entry = await _read_entry(store, info)
        if entry is not None and (base is None or entry.next_frame > base.head.uploaded_frame):
            later.append(entry)
    return snapshot.rebuilt(base, Head(topic=str(topic)), later)


async def install_manifest(
    metadata: Metadata,
    keys: MetadataKeys,
    store: ObjectStore,
    topic: TopicName,
    content: Snapshot,
    replace: bool,
) -> None:
    """Store a rebuilt manifest; raises ManifestExists if there is one, unless `replace`."""
    key = keys.manifest(topic)
    existing = await metadata.get(key)
    if existing is not None and not replace:
        raise ManifestExists(f"topic {topic} has a manifest; say --replace to replace it")
    links, new_links = LinkRecords().updated(content.head.transactions)
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
    revision = existing.mod_revision if existing else 0
    # The head is deleted first and written last, since a manifest without a head is not loaded.
    # The new manifest may name objects that are in the trash, or in an upload record.
    prefixes = (
        keys.objects(topic),
        keys.links(topic),
        f"{keys.upload_session(topic)}/",
        keys.trash(topic),
    )
    deletions = [DeleteKeys(key), *(DeleteKeys(prefix, prefix=True) for prefix in prefixes)]
    puts = [Put(keys.object(topic, e.sequence), encode_record(e)) for e in content.entries]
    puts += [Put(keys.link(topic, record.number), encode_record(record)) for record in new_links]
    steps: list[Sequence[Put | DeleteKeys]] = [
        deletions,
        *chunks(puts),
        [Put(key, encode_record(head))],
    ]
    for step in steps:
        guards = [unowned, Compare(key, CompareTarget.MOD_REVISION, revision)]
        if not (await metadata.transaction(guards, step)).succeeded:
            raise ManifestExists(f"topic {topic} is in use by a broker; stop it first")
        revision = 0


async def _read_entry(store: ObjectStore, info: ObjectInfo) -> ObjectEntry | None:
    """The entry of an object according to the object itself; None if it is incomplete."""
    data = await store.get(info.key)
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        facts = form.facts_of(metadata)
    except VersionUnknown:
        raise
    except (FormatError, OSError, pa.ArrowException):
        return None
    created_us = int(info.key.rpartition("/")[2].split("-")[1])
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    raw_size = sum(group.total_byte_size for group in groups)
    entry = new_entry(info.key, facts, data, created_us, store.backend, 0, raw_size)
    return msgspec.structs.replace(entry, etag=info.etag)
