"""Integer types that must not be mixed up, and ranges of offsets."""

from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
"""Position of a message in its partition, from 0. A cursor is always the *next* offset."""

PartitionId = NewType("PartitionId", int)
"""Stable number of a partition within its topic. An unpartitioned topic has only 0."""

ONLY_PARTITION: Final = PartitionId(0)
"""The partition of an unpartitioned topic."""

FrameNumber = NewType("FrameNumber", int)
"""Position of a frame in its log, from 0, counting frames of every kind."""

Microseconds = NewType("Microseconds", int)
"""A point in time, in whole microseconds since 1970 UTC."""

Nanoseconds = NewType("Nanoseconds", int)
"""A point on the monotonic clock, or a duration."""


class OffsetRange(NamedTuple):
    """Offsets from `first` up to, not including, `next`, of a partition that the context names."""

    first: Offset
    next: Offset

    @property
    def messages(self) -> int:
        """The number of offsets."""
        return self.next - self.first


class PartitionRange(NamedTuple):
    """Offsets of one partition from `first` up to, not including, `next`."""

    partition: int
    first: int
    next: int
