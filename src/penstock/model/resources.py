"""What people make and name: tenants, namespaces, topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.model.durability import Durability
from penstock.model.errors import PartitionInvalid, SchemaInvalid
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue, kind_of
from penstock.model.units import Microseconds

RAW_PARTITION_COLUMN: Final = "subject"
"""The one column that can divide a topic without a schema."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Beyond these limits a topic's oldest messages go; None is none."""

    age_seconds_max: float | None = None
    bytes_max: int | None = None
    messages_max: int | None = None


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A tenant as it is kept."""

    tenant: str
    created_us: Microseconds


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace as it is kept."""

    name: Namespace
    created_us: Microseconds
    store: str = ""
    """Which of `storage.stores` keeps its objects; empty means the broker's own bucket."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it is asked for; raises SchemaInvalid when its parts do not fit together."""

    name: TopicName
    schema: pa.Schema | None = None
    """Columns of a typed topic; None for raw messages."""
    partition_column: str | None = None
    durability: Durability = Durability.FSYNC
    retention: Retention = Retention()

    def __post_init__(self) -> None:
        if self.partition_column is None:
            return
        type_ = self.partition_type
        if type_ is None:
            known = [RAW_PARTITION_COLUMN] if self.schema is None else self.schema.names
            raise SchemaInvalid(
                f"there is no column {self.partition_column!r} to partition by; "
                f"known: {', '.join(known)}"
            )
        if kind_of(type_) is None:
            raise SchemaInvalid(
                f"a topic cannot be partitioned by column {self.partition_column!r} of type "
                f"{type_}; use an integer, string, binary or bool column"
            )
        if self.schema is not None and self.schema.field(self.partition_column).nullable:
            raise SchemaInvalid(f"partition column {self.partition_column!r} cannot be nullable")

    @property
    def partition_type(self) -> pa.DataType | None:
        """Type of the partition column; None when there is none."""
        if self.partition_column is None:
            return None
        if self.schema is None:
            return pa.string() if self.partition_column == RAW_PARTITION_COLUMN else None
        index = self.schema.get_field_index(self.partition_column)
        return None if index < 0 else self.schema.field(index).type

    @property
    def pushed_schema(self) -> pa.Schema | None:
        """Columns of the rows of one partition: the partition's value is told once, beside them."""
        if self.schema is None or self.partition_column is None:
            return self.schema
        return self.schema.remove(self.schema.get_field_index(self.partition_column))


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is kept."""

    spec: TopicSpec
    unique: str
    """Tells this topic from an earlier one of the same name."""
    created_us: Microseconds

    @property
    def name(self) -> TopicName:
        return self.spec.name

    def check_partition(self, value: PartitionValue | None) -> None:
        """Raises PartitionInvalid when a value is missing, unexpected or of another type."""
        type_ = self.spec.partition_type
        if type_ is None and value is not None:
            raise PartitionInvalid(
                f"topic {self.name.full} does not specify a partition key but "
                "the request contains a partition value"
            )
        if type_ is not None and value is None:
            raise PartitionInvalid(
                f"topic {self.name.full} specifies a partition key but "
                "the request does not contain a partition value"
            )
        if value is not None and value.type != type_:
            raise PartitionInvalid(
                f"topic {self.name.full} partition column data type {kind_of(type_)} does not "
                f"match partition value data type {value.kind}"
            )
