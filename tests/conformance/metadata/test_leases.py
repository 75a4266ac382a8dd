"""Leases, on every store."""

import pytest

from penstock.metadata import (
    LEASE_SECONDS_MAX,
    KeyChange,
    LeaseExpired,
    Metadata,
    MetadataEntry,
    MetadataRefused,
    Put,
)
from tests.conformance.metadata.watching import watched
from tests.eventually import eventually
from tests.faults import keep_alive

pytestmark = [pytest.mark.feature("T25"), pytest.mark.asyncio(loop_scope="session")]

LONG_SECONDS = 3600


async def test_a_key_tells_its_lease(store: Metadata, root: str) -> None:
    lease = await store.grant(LONG_SECONDS)
    at = await store.put(f"{root}/a", b"", lease)
    assert await store.get(f"{root}/a") == MetadataEntry(f"{root}/a", b"", at, at, 1, lease)


async def test_no_two_leases_are_the_same(store: Metadata) -> None:
    leases = [await store.grant(LONG_SECONDS) for _ in range(5)]
    for lease in leases:
        await store.revoke(lease)
    leases += [await store.grant(LONG_SECONDS) for _ in range(5)]
    assert len(set(leases)) == 10


async def test_a_lease_that_is_not_kept_alive_takes_its_keys_with_it(
    store: Metadata, root: str
) -> None:
    lease = await store.grant(4)
    await store.put(f"{root}/stays", b"")
    await store.put(f"{root}/a", b"", lease)
    before = await store.put(f"{root}/b", b"", lease)

    async def gone() -> bool:
        return await store.get(f"{root}/a") is None

    await eventually(gone)
    page = await store.range(f"{root}/")
    assert [entry.key for entry in page.entries] == [f"{root}/stays"]
    changes = await watched(store, f"{root}/", before, 2)
    assert changes == [
        KeyChange(f"{root}/a", None, changes[0].revision),
        KeyChange(f"{root}/b", None, changes[0].revision),
    ]
    assert changes[0].revision > before


async def test_a_lease_that_has_ended_cannot_be_kept_alive_nor_used(
    store: Metadata, root: str
) -> None:
    lease = await store.grant(1)

    async def ended() -> bool:
        try:
            await store.put(f"{root}/a", b"", lease)
        except LeaseExpired:
            return True
        return False

    await eventually(ended)
    with pytest.raises(LeaseExpired):
        await keep_alive(store, lease)
    with pytest.raises(LeaseExpired):
        await store.transaction([], [Put(f"{root}/a", b"", lease)])
    assert await store.get(f"{root}/a") is None


async def test_a_lease_kept_alive_outlives_one_that_is_not(store: Metadata, root: str) -> None:
    kept, dropped = await store.grant(2), await store.grant(2)
    await store.put(f"{root}/kept", b"", kept)
    await store.put(f"{root}/dropped", b"", dropped)

    async def dropped_has_ended() -> bool:
        assert await keep_alive(store, kept) == 2.0
        return await store.get(f"{root}/dropped") is None

    await eventually(dropped_has_ended)
    assert await store.get(f"{root}/kept") is not None
    await store.revoke(kept)


async def test_a_revoked_lease_takes_its_keys_with_it_at_once(store: Metadata, root: str) -> None:
    lease = await store.grant(LONG_SECONDS)
    await store.put(f"{root}/a", b"", lease)
    await store.put(f"{root}/b", b"", lease)
    await store.put(f"{root}/stays", b"")
    await store.revoke(lease)
    entries = (await store.range(f"{root}/")).entries
    assert [entry.key for entry in entries] == [f"{root}/stays"]
    with pytest.raises(LeaseExpired):
        await keep_alive(store, lease)
    await store.revoke(lease)


async def test_a_lease_without_keys_ends_without_a_change(store: Metadata, root: str) -> None:
    lease = await store.grant(LONG_SECONDS)
    before = await store.put(f"{root}/a", b"")
    await store.revoke(lease)
    assert (await store.range(root)).revision == before


async def test_a_key_put_without_its_lease_is_free_of_it(store: Metadata, root: str) -> None:
    lease, other = await store.grant(LONG_SECONDS), await store.grant(LONG_SECONDS)
    for name in ("free", "moved", "bound"):
        await store.put(f"{root}/{name}", b"", lease)
    await store.put(f"{root}/free", b"")
    await store.put(f"{root}/moved", b"", other)
    await store.revoke(lease)
    entries = (await store.range(f"{root}/")).entries
    assert [(entry.key, entry.lease) for entry in entries] == [
        (f"{root}/free", None),
        (f"{root}/moved", other),
    ]


@pytest.mark.parametrize("seconds", [-1, 0, LEASE_SECONDS_MAX + 1])
async def test_a_lease_has_a_sensible_length(store: Metadata, seconds: int) -> None:
    with pytest.raises(MetadataRefused):
        await store.grant(seconds)
