"""Checks the content of objects, without a broker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.formats import objects as form
from penstock.formats.objects import ObjectFacts
from penstock.model.errors import FormatError
from penstock.objects import ObjectMissing, ObjectStore
from penstock.tiers.manifest.entries import ObjectEntry


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """The facts that an object states about itself, and the problems found in it."""

    key: str
    size_bytes: int
    facts: ObjectFacts | None
    problems: tuple[str, ...]


async def check_object(
    store: ObjectStore, key: str, entry: ObjectEntry | None = None
) -> ObjectReport:
    """Read every byte of an object and compare it with its own facts and its manifest entry."""
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


def _count_problems(count: int, expected: int) -> list[str]:
    return [] if count == expected else [f"it has {count} rows and should have {expected}"]


def _row_problems(table: pa.Table, facts: ObjectFacts) -> list[str]:
    problems = _count_problems(table.num_rows, facts.rows)
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    ranges = {span.partition: span for span in facts.ranges}
    for partition in np.unique(partitions).tolist():
        in_partition = offsets[partitions == partition]
        span = ranges.get(partition)
        if span is None or in_partition.min() < span.first or in_partition.max() >= span.next:
            problems.append(f"partition {partition} has offsets outside its range")
        if (np.diff(in_partition) <= 0).any():
            problems.append(f"partition {partition} has offsets out of order or twice")
    if (np.diff(partitions) < 0).any():
        problems.append("its partitions are out of order")
    return problems
