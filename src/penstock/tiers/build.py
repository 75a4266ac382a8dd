"""Make an object from what was collected from the WAL. Runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from penstock.formats import objects as form
from penstock.formats.objects import OBJECT_VERSION, ObjectFacts, Range
from penstock.log.collect import Collected
from penstock.model.batch import Batch
from penstock.model.columns import Columns, content_bytes
from penstock.model.names import TopicName
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import ObjectEntry, entry_of


@dataclass(frozen=True, slots=True)
class Built:
    """An object ready to be uploaded, and the entry it will have."""

    entry: ObjectEntry
    data: pa.Buffer


def build(
    topic: TopicName,
    collected: Collected,
    first_frame: int,
    deletions: Deletions,
    epoch: int,
    created_us: int,
    unique: str,
    backend: str,
    sequence: int,
) -> Built | None:
    """The object of the collected batches; None when they hold no offsets at all."""
    if not collected.batches:
        return None
    batches = sorted(collected.batches, key=lambda batch: (batch.partition, batch.first_offset))
    ranges = list(_ranges(batches))
    kept = [deletions.without(batch) for batch in batches]
    content = batches[0].content
    typed = not isinstance(content, Columns)
    facts = ObjectFacts(
        version=OBJECT_VERSION,
        topic=str(topic),
        ranges=ranges,
        rows=sum(batch.messages for batch in kept),
        first_timestamp=min(batch.first_timestamp for batch in batches),
        last_timestamp=max(_last_timestamp(batch) for batch in batches),
        epoch=epoch,
        first_frame=first_frame,
        next_frame=collected.cursor.frame,
        typed=typed,
        schema=b"" if isinstance(content, Columns) else content.schema.serialize().to_pybytes(),
    )
    data = form.encode(kept, facts)
    key = form.object_key(topic, created_us, ranges, unique)
    raw_size = sum(content_bytes(batch.content) for batch in kept)
    return Built(entry_of(key, facts, data, created_us, backend, sequence, raw_size), data)


def _ranges(batches: Iterable[Batch]) -> Iterable[Range]:
    for partition, group in groupby(batches, key=lambda batch: batch.partition):
        mine = list(group)
        yield Range(partition, mine[0].first_offset, mine[-1].next_offset)


def _last_timestamp(batch: Batch) -> int:
    return batch.first_timestamp if batch.timestamps is None else batch.timestamps[-1].as_py()
