"""Watches, run to a known number of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from penstock.metadata import KeyChange, Metadata, Revision
from tests.eventually import WAIT_SECONDS


def watch(store: Metadata, prefix: str, since: Revision) -> AsyncGenerator[list[KeyChange], None]:
    """A watch that can be closed."""
    iterator: AsyncIterator[list[KeyChange]] = store.watch(prefix, since)
    return cast("AsyncGenerator[list[KeyChange], None]", iterator)


async def watched(store: Metadata, prefix: str, since: Revision, count: int) -> list[KeyChange]:
    """The first changes behind a revision, at least `count` of them."""
    changes: list[KeyChange] = []
    async with asyncio.timeout(WAIT_SECONDS), aclosing(watch(store, prefix, since)) as lists:
        async for some in lists:
            assert some
            changes += some
            if len(changes) >= count:
                break
    return changes
