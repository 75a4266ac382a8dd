"""What may be asked of a metadata store, checked before it is asked.

etcd refuses transactions of more than 128 operations or about 1.5 MiB, the same key put twice, and
a put below a delete of the same transaction. SQLite would take all that; so that a broker does not
break on the day it moves to etcd, both refuse the same things, here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.metadata.interface import Compare, Delete, MetadataRefused, Put, Target

OPERATIONS_MAX: Final = 128
"""Comparisons, and changes, of one transaction."""

REQUEST_BYTES_MAX: Final = 5 << 18
"""Keys and values of one transaction; below etcd's limit by room for the envelope."""

CHUNK_BYTES_MAX: Final = REQUEST_BYTES_MAX // 2
"""Of changes that need not be made together, so much goes into one transaction; one alone may have
more.
"""

RANGE_ENTRIES_MAX: Final = 10_000
"""Entries of one page."""

LEASE_SECONDS_MAX: Final = 86_400 * 365


def encode_key(key: str) -> bytes:
    """The key as stored, where it sorts by its bytes; raises MetadataRefused."""
    if not key:
        raise MetadataRefused("a key must not be empty")
    return encode_prefix(key)


def encode_prefix(prefix: str) -> bytes:
    """The beginning of keys, which may be empty; raises MetadataRefused."""
    try:
        return prefix.encode()
    except UnicodeEncodeError as error:
        raise MetadataRefused(f"key {prefix!a} is not text: {error.reason}") from None


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all that start with `prefix`; None when there is no such key."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def range_start(prefix: bytes, after: bytes) -> bytes:
    """Where a page begins: at the prefix, or right behind the last key of the page before."""
    return max(prefix, after + b"\0") if after else prefix


def check_transaction(compares: Sequence[Compare], changes: Sequence[Put | Delete]) -> int:
    """The bytes of keys and values; raises MetadataRefused when it breaks a rule or limit."""
    for name, items in (("comparisons", compares), ("changes", changes)):
        if len(items) > OPERATIONS_MAX:
            raise MetadataRefused(
                f"{len(items)} {name} in a transaction, the limit operations_max is "
                f"{OPERATIONS_MAX}"
            )
    size = _size(compares, changes)
    if size > REQUEST_BYTES_MAX:
        raise MetadataRefused(
            f"a transaction of {size} bytes, the limit request_bytes_max is {REQUEST_BYTES_MAX}"
        )
    _check_overlap(changes)
    return size


def fits(compares: Sequence[Compare], changes: Sequence[Put | Delete]) -> bool:
    """Whether this is not too much for one transaction."""
    count = max(len(compares), len(changes))
    return count <= OPERATIONS_MAX and _size(compares, changes) <= REQUEST_BYTES_MAX


def chunks(puts: Iterable[Put], count_max: int = OPERATIONS_MAX) -> Iterator[list[Put]]:
    """In order, as many at a time as a transaction takes beside a few comparisons."""
    chunk: list[Put] = []
    size = 0
    for put in puts:
        size += _change_bytes(put)
        if chunk and (len(chunk) == count_max or size > CHUNK_BYTES_MAX):
            yield chunk
            chunk, size = [], _change_bytes(put)
        chunk.append(put)
    if chunk:
        yield chunk


def check_page(limit: int) -> None:
    if not 1 <= limit <= RANGE_ENTRIES_MAX:
        raise MetadataRefused(f"a page of {limit} entries is not in 1 to {RANGE_ENTRIES_MAX}")


def check_lease(seconds: int) -> None:
    if not 1 <= seconds <= LEASE_SECONDS_MAX:
        raise MetadataRefused(f"a lease of {seconds} seconds is not in 1 to {LEASE_SECONDS_MAX}")


def _size(compares: Sequence[Compare], changes: Sequence[Put | Delete]) -> int:
    return sum(map(_compare_bytes, compares)) + sum(map(_change_bytes, changes))


def _compare_bytes(compare: Compare) -> int:
    value = compare.equals
    if isinstance(value, bytes) != (compare.target is Target.VALUE):
        raise MetadataRefused(
            f"{compare.target.value} cannot be compared with {type(value).__name__}"
        )
    return len(encode_key(compare.key)) + (len(value) if isinstance(value, bytes) else 8)


def _change_bytes(change: Put | Delete) -> int:
    return len(encode_key(change.key)) + (len(change.value) if isinstance(change, Put) else 0)


def _check_overlap(changes: Sequence[Put | Delete]) -> None:
    puts = [change.key for change in changes if isinstance(change, Put)]
    if len(set(puts)) < len(puts):
        raise MetadataRefused("a transaction puts the same key twice")
    for change in changes:
        if isinstance(change, Delete) and any(_deletes(change, key) for key in puts):
            raise MetadataRefused(f"a transaction both puts and deletes {change.key!r}")


def _deletes(delete: Delete, key: str) -> bool:
    return key.startswith(delete.key) if delete.prefix else key == delete.key
