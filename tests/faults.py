"""Stores that fail when they are told to: before a call, after it, from then on, or by a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from crc32c import crc32c as crc32c_of

from penstock.metadata import (
    Compare,
    DeleteKeys,
    EntryPage,
    KeyChange,
    LeaseId,
    Metadata,
    MetadataEntry,
    MetadataUnavailable,
    Put,
    Revision,
    TransactionResult,
)
from penstock.objects import Buffer, ObjectInfo, ObjectStore, StoreUnavailable

_T = TypeVar("_T")


class Crashed(Exception):
    """The process that made this call is dead; nothing of it reaches a store any more."""


class Steps:
    """The calls that a process makes to its stores, in order; one of them may be its last."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.crash_before: int | None = None
        self.crash_after: int | None = None
        self.lose: dict[int, bool] = {}
        """Calls that fail without a crash: whether they are carried out all the same."""
        self.fail: Callable[[str, str], Exception | None] = lambda name, key: None
        """Given the name of a call and the key, the error it meets."""
        self.wait: Callable[[str, str], Awaitable[None]] | None = None
        """Something to wait for in every call."""
        self._dead = False

    async def call(
        self, name: str, key: str, unavailable: Exception, call: Callable[[], Awaitable[_T]]
    ) -> _T:
        here = len(self.names)
        self.names.append(name)
        if self.wait is not None:
            await self.wait(name, key)
        self._dead |= here == self.crash_before
        if self._dead:
            raise Crashed(name)
        if self.lose.get(here) is False:
            raise unavailable
        error = self.fail(name, key)
        if error is not None:
            raise error
        answer = await call()
        self._dead |= here == self.crash_after
        if self._dead:
            raise Crashed(name)
        if self.lose.get(here) is True:
            raise unavailable
        return answer


class FaultyStore:
    """Another store behind steps; it has ETags, as a real bucket does."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.steps = Steps()
        self.puts: list[str] = []
        """Every key that was put, in order."""

    @property
    def backend(self) -> str:
        return self.store.backend

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        self.puts.append(key)
        info = await self._call("put", key, lambda: self.store.put(key, pieces))
        return await self._with_etag(info)

    async def get(
        self, key: str, start: int = 0, size: int | None = None, *, crc32c: int | None = None
    ) -> bytes:
        return await self._call("get", key, lambda: self.store.get(key, start, size, crc32c=crc32c))

    async def head(self, key: str) -> ObjectInfo:
        return await self._with_etag(await self._call("head", key, lambda: self.store.head(key)))

    async def delete(self, key: str) -> None:
        await self._call("delete", key, lambda: self.store.delete(key))

    async def abort_uploads(self, prefix: str, before: str | None = None) -> int:
        return await self._call(
            "abort_uploads", prefix, lambda: self.store.abort_uploads(prefix, before)
        )

    async def enforces_conditions(self) -> bool:
        return True

    async def close(self) -> None:
        await self.store.close()

    async def damage(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Put other bytes in the place of an object's, behind everybody's back."""
        data = await self.store.get(key)
        await self.store.delete(key)
        await self.store.put(key, [change(data)])

    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[_T]]) -> _T:
        unavailable = StoreUnavailable(key, "out, says the test")
        return await self.steps.call(name, key, unavailable, call)

    async def _with_etag(self, info: ObjectInfo) -> ObjectInfo:
        if info.etag is not None:
            return info
        return info._replace(etag=f"{crc32c_of(await self.store.get(info.key)):08x}")

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        for info in await self._call("list", prefix, lambda: self._listed(prefix, after)):
            yield info

    async def _listed(self, prefix: str, after: str) -> Sequence[ObjectInfo]:
        return [await self._with_etag(info) async for info in self.store.list(prefix, after)]


class FaultyMetadata:
    """Another metadata store behind steps, over a connection that can be cut.

    Leases are not among the steps: when they are renewed is not up to the process.
    """

    def __init__(self, store: Metadata) -> None:
        self.store = store
        self.steps = Steps()
        self.cut = False
        """Nothing reaches the store."""
        self.answers_lost = 0
        """So many of the next writes are carried out and not answered."""
        self.transactions: list[tuple[Sequence[Compare], Sequence[Put | DeleteKeys]]] = []
        """What reached the store."""

    async def get(self, key: str) -> MetadataEntry | None:
        return await self._call("read", key, lambda: self.store.get(key))

    async def get_many(self, keys: Sequence[str]) -> list[MetadataEntry | None]:
        first = keys[0] if keys else ""
        return await self._call("read", first, lambda: self.store.get_many(keys))

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> EntryPage:
        return await self._call("range", prefix, lambda: self.store.range(prefix, after, limit))

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision:
        return await self._write("write", key, lambda: self.store.put(key, value, lease))

    async def delete(self, key: str) -> bool:
        return await self._write("write", key, lambda: self.store.delete(key))

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        def call() -> Awaitable[TransactionResult]:
            self.transactions.append((compares, changes))
            return self.store.transaction(compares, changes)

        return await self._write("transaction", changes[0].key if changes else "", call)

    async def grant(self, seconds: int) -> LeaseId:
        self.reach()
        return await self.store.grant(seconds)

    def renewer(self) -> FaultyRenewer:
        return FaultyRenewer(self)

    async def revoke(self, lease: LeaseId) -> None:
        self.reach()
        await self.store.revoke(lease)

    def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[KeyChange]]:
        return self.store.watch(prefix, since)

    async def close(self) -> None:
        await self.store.close()

    def reach(self) -> None:
        """Raises MetadataUnavailable while the connection is cut."""
        if self.cut:
            raise MetadataUnavailable("cut off by the test")

    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[_T]]) -> _T:
        self.reach()
        return await self.steps.call(name, key, MetadataUnavailable("out, says the test"), call)

    async def _write(self, name: str, key: str, call: Callable[[], Awaitable[_T]]) -> _T:
        result = await self._call(name, key, call)
        if self.answers_lost:
            self.answers_lost -= 1
            raise MetadataUnavailable("answer lost by the test")
        return result


class FaultyRenewer:
    """Renews leases over the connection of a FaultyMetadata."""

    def __init__(self, store: FaultyMetadata) -> None:
        self._store, self._renewer = store, store.store.renewer()

    def keep_alive(self, lease: LeaseId, timeout_seconds: float) -> float:
        self._store.reach()
        return self._renewer.keep_alive(lease, timeout_seconds)

    def close(self) -> None:
        self._renewer.close()


async def keep_alive(store: Metadata, lease: LeaseId, timeout_seconds: float = 30.0) -> float:
    """Renew a lease as the keeper's thread does."""
    renewer = store.renewer()
    try:
        return await asyncio.to_thread(renewer.keep_alive, lease, timeout_seconds)
    finally:
        renewer.close()
