"""Batches for objects: raw messages, and rows of every type of typed topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.units import Microseconds, Offset, PartitionId

NOON: Final = 1_700_000_000_000_000

SCALARS: Final = pa.schema(
    [
        pa.field("i8", pa.int8(), nullable=False),
        pa.field("i16", pa.int16(), nullable=False),
        pa.field("i32", pa.int32(), nullable=False),
        pa.field("i64", pa.int64(), nullable=False),
        pa.field("u8", pa.uint8(), nullable=False),
        pa.field("u16", pa.uint16(), nullable=False),
        pa.field("u32", pa.uint32(), nullable=False),
        pa.field("u64", pa.uint64(), nullable=False),
        pa.field("f32", pa.float32(), nullable=False),
        pa.field("f64", pa.float64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        pa.field("b", pa.bool_(), nullable=False),
        pa.field("bin", pa.binary(), nullable=False),
    ]
)
"""The types a typed topic may have."""
NULLABLE: Final = pa.schema([field.with_nullable(True) for field in SCALARS])

LOW: Final = (-(2**7), -(2**15), -(2**31), -(2**63), 0, 0, 0, 0, -1.5, -1e300, "", False, b"")
HIGH: Final = (
    *(2**7 - 1, 2**15 - 1, 2**31 - 1, 2**63 - 1),
    *(2**8 - 1, 2**16 - 1, 2**32 - 1, 2**64 - 1),
    *(1.5, 1e300, "größer", True, b"\x00\xff"),
)


def raw(
    first: int, payloads: Sequence[bytes], partition: int = 0, headers: list[bytes] | None = None
) -> Batch:
    """Messages with subjects `s.<offset>` and a timestamp each."""
    count = len(payloads)
    return Batch(
        PartitionId(partition),
        Offset(first),
        count,
        Microseconds(NOON + first),
        Columns(
            pa.array([b"s.%d" % (first + i) for i in range(count)], pa.binary()),
            pa.array(payloads, pa.binary()),
            None if headers is None else pa.array(headers, pa.binary()),
        ),
        pa.array([NOON + first + i for i in range(count)], pa.int64()),
    )


def typed(first: int, rows: Sequence[tuple[Any, ...]], schema: pa.Schema = SCALARS) -> Batch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    content = pa.record_batch(arrays, schema=schema)
    return Batch(PartitionId(0), Offset(first), len(rows), Microseconds(NOON), content)
