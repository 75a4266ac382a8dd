"""What manifests and bucket hold after a cut, looked at before the broker touches them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from penstock.metadata import Metadata, MetadataKeys
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model import names
from penstock.model.names import TopicName
from penstock.objects import ObjectStore
from penstock.objects.fs import FileStore
from penstock.tiers import check_object, load_manifest
from penstock.tiers.manifest.entries import Head, ObjectEntry, decode_head
from tests.powercut.facts import Id, Manifest, Object, Tell
from tests.powercut.payload import identify_all
from tests.powercut.storages import METADATA, OBJECTS

KEYS = MetadataKeys()


async def tell_bucket(directory: Path, tell: Tell) -> None:
    """Every manifest and every row of the objects it names."""
    if not (directory / METADATA).is_dir():
        return
    metadata = await SqliteMetadata.open(directory / METADATA)
    store = FileStore(directory / OBJECTS)
    try:
        async for head in _heads(metadata):
            await _tell_topic(metadata, store, head, tell)
    finally:
        await metadata.close()
        await store.close()


async def _heads(metadata: Metadata) -> AsyncIterator[Head]:
    after = ""
    while True:
        page = await metadata.range("/penstock/storage/topics/", after)
        for entry in page.entries:
            if entry.key.endswith("/objects/cur"):
                yield decode_head(entry.value)
        if not page.more:
            return
        after = page.entries[-1].key


async def _tell_topic(metadata: Metadata, store: ObjectStore, head: Head, tell: Tell) -> None:
    topic = names.topic(head.topic)
    _, entries = await load_manifest(metadata, KEYS, topic)
    under_way = await metadata.range(KEYS.upload_session(topic))
    deleted = {partition: list(BitMap64.deserialize(b)) for partition, b in head.deletes.items()}
    uploads, merged = head.next_sequence, _merged(head, entries)
    tell(Manifest(head.topic, uploads, merged, len(under_way.entries), head.starts, deleted))
    for entry in entries:
        tell(await _object(store, topic, entry))


def _merged(head: Head, entries: list[ObjectEntry]) -> int:
    """Objects that are followed by a gap of sequences, and by none of frames."""
    begins = [(entry.sequence, entry.first_frame) for entry in entries]
    following = [*begins[1:], (head.next_sequence, head.uploaded_frame)]
    return sum(
        sequence > entry.sequence + 1 and frame == entry.next_frame
        for entry, (sequence, frame) in zip(entries, following, strict=False)
    )


async def _object(store: ObjectStore, topic: TopicName, entry: ObjectEntry) -> Object:
    report = await check_object(store, entry.object_id, entry)
    problems = list(report.problems)
    if report.facts is not None and report.facts.ranges != entry.ranges:
        problems.append(f"it is for {report.facts.ranges}, the manifest says {entry.ranges}")
    rows: defaultdict[int, list[tuple[int, Id]]] = defaultdict(list)
    if not problems:
        table = pq.read_table(pa.BufferReader(await store.get(entry.object_id)))
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        subjects = [subject.encode() for subject in columns["subject"]]
        ids, wrong = identify_all(subjects, columns["payload"])
        problems += wrong
        for partition, offset, id_ in zip(
            columns["partition"], columns["offset"], ids, strict=True
        ):
            rows[partition].append((offset, id_))
    ranges = [(span.partition, span.first, span.next) for span in entry.ranges]
    return Object(str(topic), entry.object_id, ranges, rows, problems)
