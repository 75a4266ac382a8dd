"""Where a message is: in an object of the bucket, or in the hot tail at the topic's owner.

Two implementations: the broker's own (topics/registry.py) and one that asks a broker over gRPC
(metadata/remote_offsets.py).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from penstock.metadata.admin import Listed, PageRequest
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Microseconds, Offset, PartitionId


class PartitionState(NamedTuple):
    """A partition as it is now."""

    value: PartitionValue | None
    partition: PartitionId
    start: Offset
    """The earliest offset that can be read."""
    next: Offset
    """The offset of the next message."""
    messages: int


class InObject(NamedTuple):
    """Offsets `first` up to `next` are rows of an object."""

    partition: PartitionId
    first: Offset
    next: Offset
    entry: bytes
    """The object's entry of the manifest, as tiers/entries.py encodes it."""
    deleted: bytes
    """Offsets among them that are deleted: a serialised roaring bitmap; empty when none is."""


class AtOwner(NamedTuple):
    """Offsets `first` up to `next` are at the owner: ask its HTTP door."""

    partition: PartitionId
    first: Offset
    next: Offset
    address: str
    """HOST:PORT."""


Location: TypeAlias = InObject | AtOwner


class OffsetRegistry(Protocol):
    """Knows where offsets are; raises ResourceUnknown, PartitionInvalid, OffsetGone."""

    async def offset_location(
        self,
        topic: TopicName,
        value: PartitionValue | None,
        offset: Offset,
        deadline: Microseconds,
    ) -> Location | None:
        """Where the first live offset at or after `offset` is.

        Past the head it waits for it, until `deadline` (time of day), and then answers None.
        """

    async def get_partition(self, topic: TopicName, value: PartitionValue | None) -> PartitionState:
        """One partition; one that does not exist yet is empty and has the id -1."""

    async def list_partitions(self, topic: TopicName, page: PageRequest) -> Listed[PartitionState]:
        """Partitions in the order of their ids; the token is an id."""
