"""The metadata store that several brokers share: etcd, over its v3 protocol.

Reads are linearizable. A transaction that was not answered raises MetadataUnavailable, never a
guess. A watch outlives broken streams and restarts of etcd: it resumes behind the last revision it
handed on. Whoever starts with the embedded store does not import this module, nor grpc.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from penstock.metadata.etcd_calls import Calls, ResponseTooLarge, TokenRefused
from penstock.metadata.etcd_endpoints import EtcdSettings
from penstock.metadata.etcd_messages import (
    COMPARE_EQUAL,
    COMPARE_TARGETS,
    DELETE_RANGE,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    PUT,
    RANGE,
    TXN,
    WATCH,
    message,
)
from penstock.metadata.etcd_watch import Progress
from penstock.metadata.interface import (
    Change,
    Compare,
    Delete,
    Entry,
    LeaseExpired,
    LeaseId,
    MetadataRefused,
    MetadataUnavailable,
    Outcome,
    Page,
    Put,
    Revision,
)
from penstock.metadata.requests import (
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
"""A broken watch is opened again after a pause that doubles up to this."""


class EtcdMetadata:
    """An etcd cluster; make it where an event loop runs."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._calls = Calls(settings)
        self._closed = asyncio.Event()

    async def get(self, key: str) -> Entry | None:
        response = await self._calls.read(RANGE, message("RangeRequest", key=encode_key(key)))
        return _entry(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> Page:
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
        return Page(entries, Revision(response.header.revision), response.more)

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision:
        change = Put(key, value, lease)
        check_transaction((), (change,))
        response = await self._calls.write(PUT, _put(change))
        return Revision(response.header.revision)

    async def delete(self, key: str) -> bool:
        change = Delete(key)
        check_transaction((), (change,))
        response = await self._calls.write(DELETE_RANGE, _delete(change))
        return bool(response.deleted)

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Outcome:
        check_transaction(compares, changes)
        request = message(
            "TxnRequest",
            compare=[_compare(compare) for compare in compares],
            success=[_operation(change) for change in changes],
        )
        # Without changes it is a read, and a read may be repeated.
        call = self._calls.write if changes else self._calls.read
        response = await call(TXN, request)
        return Outcome(response.succeeded, Revision(response.header.revision))

    async def grant(self, seconds: int) -> LeaseId:
        check_lease(seconds)
        response = await self._calls.write(LEASE_GRANT, message("LeaseGrantRequest", TTL=seconds))
        if response.error:
            raise MetadataUnavailable(f"etcd did not grant a lease: {response.error}")
        return LeaseId(response.ID)

    async def keep_alive(self, lease: LeaseId) -> float:
        # etcd counts from when it got the request, which is not before it was asked.
        response = await self._calls.exchange(
            LEASE_KEEP_ALIVE, message("LeaseKeepAliveRequest", ID=lease)
        )
        if response.TTL <= 0:
            raise LeaseExpired(f"lease {lease} has ended")
        return float(response.TTL)

    async def revoke(self, lease: LeaseId) -> None:
        try:
            await self._calls.read(LEASE_REVOKE, message("LeaseRevokeRequest", ID=lease))
        except LeaseExpired:
            return

    async def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[Change]]:
        progress = Progress(encode_prefix(prefix), since)
        pause_seconds = WATCH_PAUSE_SECONDS
        refused = False
        while True:
            try:
                async with self._calls.stream(WATCH) as stream:
                    await stream.write(progress.request())
                    async for response in stream:
                        changes = progress.take(response)
                        pause_seconds, refused = WATCH_PAUSE_SECONDS, False
                        if changes:
                            yield changes
            except TokenRefused:
                self._calls.forget_token()
            except MetadataRefused:
                # etcd says the same to an old token; with a new one it is meant.
                if refused or not self._calls.logs_in:
                    raise
                refused = True
                self._calls.forget_token()
            except MetadataUnavailable:
                if self._closed.is_set():
                    raise
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, WATCH_PAUSE_SECONDS_MAX)

    async def close(self) -> None:
        """Whoever watches gets MetadataUnavailable."""
        self._closed.set()
        await self._calls.close()


def _entry(kv: Any) -> Entry:
    return Entry(
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


def _operation(change: Put | Delete) -> Any:
    if isinstance(change, Put):
        return message("RequestOp", request_put=_put(change))
    return message("RequestOp", request_delete_range=_delete(change))


def _put(put: Put) -> Any:
    return message("PutRequest", key=encode_key(put.key), value=put.value, lease=put.lease or 0)


def _delete(delete: Delete) -> Any:
    key = encode_key(delete.key)
    end = prefix_end(key) if delete.prefix else b""
    return message("DeleteRangeRequest", key=key, range_end=end)
