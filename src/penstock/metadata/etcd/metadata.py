"""The metadata store that several brokers share: etcd, over its v3 protocol.

Reads are linearizable. A transaction without a reply raises MetadataUnavailable. A watch survives
broken streams and restarts of etcd: it resumes after the last revision that it returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from penstock.host.tasks import Backoff
from penstock.metadata.etcd.calls import EtcdCalls, ResponseTooLarge, TokenRefused
from penstock.metadata.etcd.endpoints import EtcdSettings
from penstock.metadata.etcd.messages import (
    COMPARE_EQUAL,
    COMPARE_TARGETS,
    DELETE_RANGE,
    LEASE_GRANT,
    LEASE_REVOKE,
    PUT,
    RANGE,
    TXN,
    WATCH,
    message,
)
from penstock.metadata.etcd.renewer import EtcdRenewer
from penstock.metadata.etcd.watch import WatchProgress
from penstock.metadata.interface import (
    Compare,
    DeleteKeys,
    EntryPage,
    KeyChange,
    LeaseExpired,
    LeaseId,
    MetadataEntry,
    MetadataRefused,
    MetadataUnavailable,
    Put,
    Revision,
    TransactionResult,
)
from penstock.metadata.requests import (
    OPERATIONS_MAX,
    check_lease,
    check_page,
    check_transaction,
    encode_key,
    encode_prefix,
    prefix_end,
    range_start,
)

WATCH_PAUSE_SECONDS: Final = 0.1
WATCH_PAUSE_SECONDS_MAX: Final = 2.0
"""A broken watch is opened again after a delay that doubles up to this."""


class EtcdMetadata:
    """Implements Metadata with an etcd cluster; create it where an event loop runs."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._calls = EtcdCalls(settings)
        self._closed = asyncio.Event()

    async def get(self, key: str) -> MetadataEntry | None:
        response = await self._calls.read(RANGE, message("RangeRequest", key=encode_key(key)))
        return _entry(response.kvs[0]) if response.kvs else None

    async def get_many(self, keys: Sequence[str]) -> list[MetadataEntry | None]:
        chunks = [
            keys[start : start + OPERATIONS_MAX] for start in range(0, len(keys), OPERATIONS_MAX)
        ]
        return [entry for chunk in chunks for entry in await self._get_chunk(chunk)]

    async def _get_chunk(self, keys: Sequence[str]) -> list[MetadataEntry | None]:
        """Read keys by one transaction, or by two of half the size if the reply is too large."""
        gets = [message("RangeRequest", key=encode_key(key)) for key in keys]
        request = message(
            "TxnRequest", success=[message("RequestOp", request_range=g) for g in gets]
        )
        try:
            response = await self._calls.read(TXN, request)
        except ResponseTooLarge:
            if len(keys) == 1:
                raise
            half = len(keys) // 2
            return [*await self._get_chunk(keys[:half]), *await self._get_chunk(keys[half:])]
        ranges = [reply.response_range.kvs for reply in response.responses]
        return [_entry(kvs[0]) if kvs else None for kvs in ranges]

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> EntryPage:
        check_page(limit)
        start = encode_prefix(prefix)
        request = message(
            "RangeRequest",
            key=range_start(start, encode_prefix(after)) or b"\0",
            range_end=prefix_end(start) or b"\0",
            limit=limit,
        )
        try:
            response = await self._calls.read(RANGE, request)
        except ResponseTooLarge:
            if limit == 1:
                raise
            return await self.range(prefix, after, limit // 2)
        entries = [_entry(kv) for kv in response.kvs]
        return EntryPage(entries, Revision(response.header.revision), response.more)

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision:
        change = Put(key, value, lease)
        check_transaction((), (change,))
        response = await self._calls.write(PUT, _put(change))
        return Revision(response.header.revision)

    async def delete(self, key: str) -> bool:
        change = DeleteKeys(key)
        check_transaction((), (change,))
        response = await self._calls.write(DELETE_RANGE, _delete(change))
        return bool(response.deleted)

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        check_transaction(compares, changes)
        request = message(
            "TxnRequest",
            compare=[_compare(compare) for compare in compares],
            success=[_operation(change) for change in changes],
        )
        # Without changes it is a read, and a read may be repeated.
        call = self._calls.write if changes else self._calls.read
        response = await call(TXN, request)
        return TransactionResult(response.succeeded, Revision(response.header.revision))

    async def grant(self, seconds: int) -> LeaseId:
        check_lease(seconds)
        response = await self._calls.write(LEASE_GRANT, message("LeaseGrantRequest", TTL=seconds))
        if response.error:
            raise MetadataUnavailable(f"etcd did not grant a lease: {response.error}")
        return LeaseId(response.ID)

    def renewer(self) -> EtcdRenewer:
        return EtcdRenewer(self._settings)

    async def revoke(self, lease: LeaseId) -> None:
        try:
            await self._calls.read(LEASE_REVOKE, message("LeaseRevokeRequest", ID=lease))
        except LeaseExpired:
            return

    async def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[KeyChange]]:
        progress = WatchProgress(encode_prefix(prefix), since)
        backoff = Backoff(WATCH_PAUSE_SECONDS, WATCH_PAUSE_SECONDS_MAX)
        refused = False
        while True:
            try:
                async with self._calls.stream(WATCH) as stream:
                    await stream.write(progress.request())
                    async for response in stream:
                        changes = progress.take(response)
                        backoff.reset()
                        refused = False
                        if changes:
                            yield changes
            except TokenRefused:
                self._calls.forget_token()
            except MetadataRefused:
                # etcd refuses an old token in the same way; with a new one the refusal is final.
                if refused or not self._calls.logs_in:
                    raise
                refused = True
                self._calls.forget_token()
            except MetadataUnavailable:
                if self._closed.is_set():
                    raise
            await backoff.pause()

    async def close(self) -> None:
        """Close the connections; watches raise MetadataUnavailable."""
        self._closed.set()
        await self._calls.close()


def _entry(kv: Any) -> MetadataEntry:
    return MetadataEntry(
        kv.key.decode(),
        kv.value,
        Revision(kv.create_revision),
        Revision(kv.mod_revision),
        kv.version,
        LeaseId(kv.lease) if kv.lease else None,
    )


def _compare(compare: Compare) -> Any:
    field = compare.target.value
    return message(
        "Compare",
        result=COMPARE_EQUAL,
        target=COMPARE_TARGETS[field],
        key=encode_key(compare.key),
        **{field: compare.equals},
    )


def _operation(change: Put | DeleteKeys) -> Any:
    if isinstance(change, Put):
        return message("RequestOp", request_put=_put(change))
    return message("RequestOp", request_delete_range=_delete(change))


def _put(put: Put) -> Any:
    return message("PutRequest", key=encode_key(put.key), value=put.value, lease=put.lease or 0)


def _delete(delete: DeleteKeys) -> Any:
    key = encode_key(delete.key)
    end = prefix_end(key) if delete.prefix else b""
    return message("DeleteRangeRequest", key=key, range_end=end)
