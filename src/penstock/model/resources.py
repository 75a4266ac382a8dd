"""Resources that users create: tenants, namespaces and topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import pyarrow as pa

from penstock.model.errors import PartitionInvalid, SchemaInvalid
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue, kind_of
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds

RAW_PARTITION_COLUMN: Final = "subject"
"""The only column that can partition a raw topic."""


class Durability(Enum):
    """What an acknowledgement promises; each level includes the promises of the ones before it."""

    MEMORY = "memory"
    """Fire and forget: the message is in memory only and is lost with the process."""
    FSYNC = "fsync"
    """The message survives the death of the process and a power cut of this machine."""
    CLOUD = "cloud"
    """The message survives the loss of this machine: its object and manifest entry are stored."""


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A stored tenant."""

    tenant: str
    created_us: Microseconds


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A stored namespace."""

    name: Namespace
    created_us: Microseconds
    store: str = ""
    """Name in `storage.stores` of its object store; empty means the broker's own bucket."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The configuration of a topic; raises SchemaInvalid when its parts do not fit together."""

    name: TopicName
    schema: pa.Schema | None = None
    """Columns of a typed topic; None for raw messages."""
    partition_column: str | None = None
    durability: Durability = Durability.FSYNC
    retention: TopicRetention = field(default_factory=TopicRetention)
    first_offset: int = 0
    """Offset of the first message of every partition."""

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
        """The type of the partition column; None without one."""
        if self.partition_column is None:
            return None
        if self.schema is None:
            return pa.string() if self.partition_column == RAW_PARTITION_COLUMN else None
        index = self.schema.get_field_index(self.partition_column)
        return None if index < 0 else self.schema.field(index).type

    @property
    def pushed_schema(self) -> pa.Schema | None:
        """Columns of pushed rows: without the partition column, whose value is sent once."""
        if self.schema is None or self.partition_column is None:
            return self.schema
        return self.schema.remove(self.schema.get_field_index(self.partition_column))


@dataclass(frozen=True, slots=True)
class Topic:
    """A stored topic."""

    spec: TopicSpec
    unique: str
    """Identifies this incarnation of the topic among others of its name."""
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
