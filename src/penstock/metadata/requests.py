"""Checks requests to a metadata store before they are sent.

etcd refuses transactions of more than 128 operations or about 1.5 MiB, two puts of one key, and a
put of a key that the same transaction deletes. SQLite has no such limits, but both stores apply
these checks, so that whatever works on SQLite also works on etcd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.metadata.interface import Compare, CompareTarget, DeleteKeys, MetadataRefused, Put

OPERATIONS_MAX: Final = 128
"""Limit of the comparisons, and of the changes, of one transaction."""

REQUEST_BYTES_MAX: Final = 5 << 18
"""Limit of the keys and values of one transaction; etcd's limit includes the envelope, too."""

CHUNK_BYTES_MAX: Final = REQUEST_BYTES_MAX // 2
"""Size of the transactions into which `chunks` divides changes; one change alone may be larger."""

RANGE_ENTRIES_MAX: Final = 10_000
"""Limit of the entries of one page."""

LEASE_SECONDS_MAX: Final = 86_400 * 365


def encode_key(key: str) -> bytes:
    """The stored form of a key, which sorts by its bytes; raises MetadataRefused."""
    if not key:
        raise MetadataRefused("a key must not be empty")
    return encode_prefix(key)


def encode_prefix(prefix: str) -> bytes:
    """The stored form of a prefix of keys, which may be empty; raises MetadataRefused."""
    try:
        return prefix.encode()
    except UnicodeEncodeError as error:
        raise MetadataRefused(f"key {prefix!a} is not text: {error.reason}") from None


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def range_start(prefix: bytes, after: bytes) -> bytes:
    """The first key of a page: the prefix, or the key next to the last one of the page before."""
    return max(prefix, after + b"\0") if after else prefix


def check_transaction(compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]) -> int:
    """The size of keys and values; raises MetadataRefused if it breaks a rule or limit."""
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


def fits(compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]) -> bool:
    """Whether these comparisons and changes are within the limits of one transaction."""
    count = max(len(compares), len(changes))
    return count <= OPERATIONS_MAX and _size(compares, changes) <= REQUEST_BYTES_MAX


def chunks(puts: Iterable[Put], count_max: int = OPERATIONS_MAX) -> Iterator[list[Put]]:
    """Divide puts into lists that fit into one transaction each, beside a few comparisons."""
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


def _size(compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]) -> int:
    return sum(map(_compare_bytes, compares)) + sum(map(_change_bytes, changes))


def _compare_bytes(compare: Compare) -> int:
    value = compare.equals
    if isinstance(value, bytes) != (compare.target is CompareTarget.VALUE):
        raise MetadataRefused(
            f"{compare.target.value} cannot be compared with {type(value).__name__}"
        )
    return len(encode_key(compare.key)) + (len(value) if isinstance(value, bytes) else 8)


def _change_bytes(change: Put | DeleteKeys) -> int:
    return len(encode_key(change.key)) + (len(change.value) if isinstance(change, Put) else 0)


def _check_overlap(changes: Sequence[Put | DeleteKeys]) -> None:
    puts = [change.key for change in changes if isinstance(change, Put)]
    if len(set(puts)) < len(puts):
        raise MetadataRefused("a transaction puts the same key twice")
    for change in changes:
        if isinstance(change, DeleteKeys) and any(_deletes(change, key) for key in puts):
            raise MetadataRefused(f"a transaction both puts and deletes {change.key!r}")


def _deletes(delete: DeleteKeys, key: str) -> bool:
    return key.startswith(delete.key) if delete.prefix else key == delete.key
