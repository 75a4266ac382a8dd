"""A metadata store that can be cut off, and that can carry out a request and lose the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from penstock.metadata.interface import (
    Change,
    Compare,
    Delete,
    Entry,
    LeaseId,
    Metadata,
    MetadataUnavailable,
    Outcome,
    Page,
    Put,
    Revision,
)

_T = TypeVar("_T")


class FaultyMetadata:
    """Another store, with faults that the test switches on."""

    def __init__(self, store: Metadata) -> None:
        self.store = store
        self.cut = False
        """Nothing reaches the store."""
        self.answers_lost = 0
        """So many of the next writes are carried out and not answered."""
        self.transactions: list[tuple[Sequence[Compare], Sequence[Put | Delete]]] = []
        """What reached the store."""

    async def get(self, key: str) -> Entry | None:
        self._reach()
        return await self.store.get(key)

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> Page:
        self._reach()
        return await self.store.range(prefix, after, limit)

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision:
        self._reach()
        return await self._answer(self.store.put(key, value, lease))

    async def delete(self, key: str) -> bool:
        self._reach()
        return await self._answer(self.store.delete(key))

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Outcome:
        self._reach()
        self.transactions.append((compares, changes))
        return await self._answer(self.store.transaction(compares, changes))

    async def grant(self, seconds: int) -> LeaseId:
        self._reach()
        return await self.store.grant(seconds)

    async def keep_alive(self, lease: LeaseId) -> float:
        self._reach()
        return await self.store.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> None:
        self._reach()
        await self.store.revoke(lease)

    def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[Change]]:
        return self.store.watch(prefix, since)

    async def close(self) -> None:
        await self.store.close()

    def _reach(self) -> None:
        if self.cut:
            raise MetadataUnavailable("cut off by the test")

    async def _answer(self, call: Awaitable[_T]) -> _T:
        result = await call
        if self.answers_lost:
            self.answers_lost -= 1
            raise MetadataUnavailable("answer lost by the test")
        return result
