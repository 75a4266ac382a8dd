"""How a large body is cut up on its way to a store. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from penstock.objects.interface import Buffer

PARTS_MAX: Final = 10_000
"""What S3 takes for one object."""


class TransferLimits(NamedTuple):
    """How large bodies travel."""

    part_bytes: int = 8 << 20
    """Objects larger than this are written in parts of this size."""
    parts_in_flight: int = 4
    """Parts of one object on their way at a time, and ranges of one read."""
    bytes_per_second: int = 0
    """Of all uploads together; 0 is no limit."""


def part_size(size_bytes: int, limits: TransferLimits) -> int:
    """Bytes of a part, more than asked for where there would be too many parts."""
    return max(limits.part_bytes, -(-size_bytes // PARTS_MAX))


def slices(pieces: Sequence[Buffer], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at most `size`; small ones stay as they are."""
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), size):
            yield bytes(view[start : start + size])
