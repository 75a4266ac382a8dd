"""Concurrent writers of one name."""

import asyncio
import os

import pytest

from penstock.objects import ObjectExists, ObjectInfo, ObjectStore
from tests.conformance.objects.conftest import ENFORCING, Opener

WRITERS = 8


async def race(stores: list[ObjectStore], bodies: list[bytes]) -> list[int]:
    """The writers that succeeded; the others got ObjectExists."""
    outcomes = await asyncio.gather(
        *(store.put("raced/for", [body]) for store, body in zip(stores, bodies, strict=True)),
        return_exceptions=True,
    )
    lost = [outcome for outcome in outcomes if not isinstance(outcome, ObjectInfo)]
    assert {type(outcome) for outcome in lost} <= {ObjectExists}
    return [n for n, outcome in enumerate(outcomes) if isinstance(outcome, ObjectInfo)]


@pytest.mark.feature("T13")
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("backend", ENFORCING)
async def test_exactly_one_of_racing_writers_wins(opener: Opener, asked: bool) -> None:
    stores = [opener() for _ in range(WRITERS)]
    if asked:
        for store in stores:
            assert await store.enforces_conditions()
    bodies = [b"%d" % n * 1000 for n in range(WRITERS)]
    winners = await race(stores, bodies)
    assert len(winners) == 1
    assert await stores[0].get("raced/for") == bodies[winners[0]]


@pytest.mark.parametrize("backend", ENFORCING)
async def test_the_object_is_of_one_of_racing_large_writers_and_no_upload_is_left(
    opener: Opener, backend: str
) -> None:
    stores = [opener() for _ in range(3)]
    bodies = [os.urandom(6 << 20) for _ in stores]
    winners = await race(stores, bodies)
    # SeaweedFS checks the condition of an upload in parts before it completes it, not while.
    assert len(winners) == 1 or backend == "seaweedfs"
    assert await stores[0].get("raced/for") in [bodies[winner] for winner in winners]
    assert await stores[0].abort_uploads("") == 0


@pytest.mark.parametrize("backend", ENFORCING)
async def test_writers_of_the_same_bytes_all_win(opener: Opener) -> None:
    stores = [opener() for _ in range(WRITERS)]
    assert await race(stores, [b"same"] * WRITERS) == list(range(WRITERS))


async def test_a_store_knows_whether_it_enforces_conditions(
    store: ObjectStore, backend: str
) -> None:
    assert await store.enforces_conditions() is (backend in ENFORCING)
    assert await store.enforces_conditions() is (backend in ENFORCING)
    assert [info async for info in store.list("")] == []
