"""The end of a Parquet object: what it says of itself."""

from __future__ import annotations

from typing import Final

from penstock.formats.bodies import ObjectRef
from penstock.model.errors import RunInvalid
from penstock.objects.interface import ObjectMissing, ObjectStore

TAIL_BYTES: Final = 64 << 10
"""Read first; nearly every footer is in it."""
MAGIC: Final = b"PAR1"
_FOOTER_END_BYTES: Final = 8


async def footer(store: ObjectStore, ref: ObjectRef) -> bytes:
    """The footer of an object that somebody else laid into the bucket, its length and the magic
    behind it; raises RunInvalid.
    """
    try:
        info = await store.head(ref.key)
    except ObjectMissing as error:
        raise RunInvalid(str(error)) from None
    if info.size_bytes != ref.size_bytes or (ref.etag and info.etag not in (None, ref.etag)):
        raise RunInvalid(f"object {ref.key} is not the one that was staged")
    found = await stored_footer(store, ref.key, ref.size_bytes)
    if found is None:
        raise RunInvalid(f"object {ref.key} is not a Parquet file")
    return found


async def stored_footer(store: ObjectStore, key: str, size_bytes: int) -> bytes | None:
    """The same of an object of this size; None when it is not a Parquet file."""
    size = min(size_bytes, TAIL_BYTES)
    tail = await store.get(key, size_bytes - size, size)
    length = int.from_bytes(tail[-_FOOTER_END_BYTES:-4], "little") + _FOOTER_END_BYTES
    if not tail.endswith(MAGIC) or length > size_bytes:
        return None
    if length > size:
        tail = await store.get(key, size_bytes - length, length)
    return tail[-length:]
