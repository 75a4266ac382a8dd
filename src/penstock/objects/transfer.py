"""Bodies on their way to and from a store: parts, rate limit and checksums."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c as crc32c_of

from penstock.host.clock import Clock
from penstock.model.units import Nanoseconds
from penstock.objects.interface import Buffer, ObjectDamaged, ObjectStore

PARTS_MAX: Final = 10_000
"""Maximum number of parts of an S3 object."""


class TransferLimits(NamedTuple):
    """Limits for transfers of large bodies."""

    part_bytes: int = 8 << 20
    """Part size; larger objects are written in parts."""
    parts_in_flight: int = 4
    """Maximum concurrent parts of one write, and ranges of one read."""
    bytes_per_second: int = 0
    """Rate limit of all uploads together (0 = none)."""


def part_size(size_bytes: int, limits: TransferLimits) -> int:
    """The part size for an object: larger than `limits.part_bytes` if it had too many parts."""
    return max(limits.part_bytes, -(-size_bytes // PARTS_MAX))


def slices(pieces: Sequence[Buffer], size: int) -> Iterator[bytes]:
    """Cut pieces into pieces of at most `size` bytes."""
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), size):
            yield bytes(view[start : start + size])


CREDIT_SECONDS: Final = 1.0
_SECOND_NS: Final = 1_000_000_000


class TokenBucket:
    """A token bucket that may be overdrawn: taking more than there is makes later callers wait.

    So any size may be taken at once, callers are served in order, and the average rate holds. After
    a pause there is credit for one second.
    """

    def __init__(self, bytes_per_second: int, now_ns: Nanoseconds) -> None:
        self._rate = bytes_per_second
        self._credit_bytes = self._rate * CREDIT_SECONDS
        self._at_ns = now_ns

    def take(self, size_bytes: int, now_ns: Nanoseconds) -> float:
        """Take these bytes; returns the seconds to wait before they may be sent."""
        earned = (now_ns - self._at_ns) * self._rate / _SECOND_NS
        self._at_ns = now_ns
        self._credit_bytes = min(self._rate * CREDIT_SECONDS, self._credit_bytes + earned)
        self._credit_bytes -= size_bytes
        return max(0.0, -self._credit_bytes / self._rate)


class Bandwidth:
    """Limits the rate of sent bytes (0 = no limit)."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._clock = clock
        self._bucket = (
            TokenBucket(bytes_per_second, clock.monotonic_ns()) if bytes_per_second else None
        )

    async def wait(self, size_bytes: int) -> None:
        """Return when these bytes may be sent."""
        if self._bucket is not None:
            seconds = self._bucket.take(size_bytes, self._clock.monotonic_ns())
            if seconds:
                await asyncio.sleep(seconds)


READ_BYTES: Final = 4 << 20
"""Size of a range that is read at once; copying larger ranges would stall the event loop."""


def pieces_crc32c(pieces: Sequence[Buffer]) -> int:
    """The CRC32C of the concatenated pieces."""
    crc = 0
    for piece in pieces:
        crc = crc32c_of(piece, crc)
    return crc


def pieces_md5(pieces: Sequence[Buffer]) -> str:
    """The MD5 of the concatenated pieces in base64, as stores report it."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return b64encode(digest.digest()).decode()


async def stored_crc32c(store: ObjectStore, key: str, size_bytes: int) -> int:
    """The CRC32C of the first `size_bytes` of a stored object; raises what `get` raises."""
    crc = 0
    for start in range(0, size_bytes, READ_BYTES):
        data = await store.get(key, start, min(READ_BYTES, size_bytes - start))
        crc = crc32c_of(data, crc)
    return crc


def check_crc32c(key: str, data: bytes, crc32c: int | None) -> bytes:
    """Return the data if it has this checksum or none is given; raises ObjectDamaged."""
    if crc32c is not None and (actual := crc32c_of(data)) != crc32c:
        raise ObjectDamaged(key, crc32c, actual)
    return data
