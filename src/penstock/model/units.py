"""Integers that must not be mixed up: each has its own type, and its unit in its name."""

from typing import Final, NewType

Offset = NewType("Offset", int)
"""Position of a message in a partition, from 0; a cursor is always the *next* offset."""

PartitionId = NewType("PartitionId", int)
"""Stable number of a partition within its topic; an unpartitioned topic has only 0."""

ONLY_PARTITION: Final = PartitionId(0)
"""The partition of an unpartitioned topic."""

FrameNumber = NewType("FrameNumber", int)
"""Position of a frame in its log, from 0, counting frames of every kind."""

Microseconds = NewType("Microseconds", int)
"""A point in time, in whole microseconds since 1970 UTC."""

Nanoseconds = NewType("Nanoseconds", int)
"""A point on the monotonic clock, or a duration."""
