"""CRC32C of an object's bytes: of pieces in hand, of what a store has, and whether they agree.

MD5 is for stores that tell that of what they have got, and take no CRC32C from us.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c as crc32c_of

from penstock.objects.interface import Buffer, ObjectDamaged, ObjectStore

READ_BYTES: Final = 4 << 20
"""A range read at once; larger ones stop the event loop while they are copied."""


def pieces_crc32c(pieces: Sequence[Buffer]) -> int:
    """The checksum of all pieces one behind the other."""
    crc = 0
    for piece in pieces:
        crc = crc32c_of(piece, crc)
    return crc


def pieces_md5(pieces: Sequence[Buffer]) -> str:
    """The MD5 of all pieces one behind the other, in base64, as stores tell it."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return b64encode(digest.digest()).decode()


async def stored_crc32c(store: ObjectStore, key: str, size_bytes: int) -> int:
    """The checksum of the first `size_bytes` of an object, read back in ranges; raises as `get`."""
    crc = 0
    for start in range(0, size_bytes, READ_BYTES):
        data = await store.get(key, start, min(READ_BYTES, size_bytes - start))
        crc = crc32c_of(data, crc)
    return crc


def check_crc32c(key: str, data: bytes, crc32c: int | None) -> bytes:
    """The data, if it has the checksum; raises ObjectDamaged."""
    if crc32c is not None and (found := crc32c_of(data)) != crc32c:
        raise ObjectDamaged(key, crc32c, found)
    return data
