"""Combines the CRC32C checksums of parts into that of the whole, without reading the bytes again.

Appending n bytes applies a linear map to the bits of a checksum. The maps for 1, 2, 4, 8... bytes
are cached as tables; the map for n bytes is composed of those for the powers of two in n.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from crc32c import crc32c

_BITS: Final = 32
_NIBBLES: Final = tuple(range(0, _BITS, 4))


def joined(first: int, second: int, second_bytes: int) -> int:
    """The CRC32C of bytes with checksum `first`, followed by bytes with checksum `second`."""
    power = 0
    while second_bytes:
        if second_bytes & 1:
            first = _shifted(_shift(power), first)
        second_bytes >>= 1
        power += 1
    return first ^ second


def _shifted(tables: list[list[int]], checksum: int) -> int:
    result = 0
    for table in tables:
        result ^= table[checksum & 15]
        checksum >>= 4
    return result


@cache
def _shift(power: int) -> list[list[int]]:
    """The map for 2 ** power bytes: a table for every four bits of a checksum."""
    if power == 0:
        none = crc32c(b"\0")
        return _tables([crc32c(b"\0", 1 << bit) ^ none for bit in range(_BITS)])
    half = _shift(power - 1)
    return _tables([_shifted(half, _shifted(half, 1 << bit)) for bit in range(_BITS)])


def _tables(images: list[int]) -> list[list[int]]:
    """Tables of a linear map from its images of single bits."""
    tables = []
    for low in _NIBBLES:
        table = [0]
        for image in images[low : low + 4]:
            table += [image ^ other for other in table]
        tables.append(table)
    return tables
