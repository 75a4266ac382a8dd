"""An S3 server behind a network that fails in every way: right bytes or a typed error, no hang.

A fault that passes is survived; one that stays is StoreUnavailable, and leaves nothing behind that
the next attempt, or `abort_uploads`, does not clear.
"""

import os
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from crc32c import crc32c

from penstock.objects import (
    ObjectDamaged,
    ObjectExists,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
)
from penstock.objects.calls import CallLimits
from penstock.objects.remote import RemoteStore
from penstock.objects.transfer import TransferLimits
from tests.servers.fault_proxy import Fault, FaultProxy, Kind
from tests.servers.s3 import HASTY, PATIENT, S3Server, make_store

PART_BYTES = 5 << 20
TRANSFER = TransferLimits(PART_BYTES, parts_in_flight=2)
SMALL = b"some bytes of an object " * 2000
LARGE = os.urandom(2 * PART_BYTES + 1000)
ALWAYS = 1_000_000

PASSING = {
    "500": Fault(Kind.STATUS, number=500),
    "503 twice": Fault(Kind.STATUS, number=503, times=2),
    "429": Fault(Kind.STATUS, number=429),
    "reset before": Fault(Kind.RESET_BEFORE),
    "reply lost": Fault(Kind.RESET_AFTER),
    "hang": Fault(Kind.HANG_BEFORE),
    "late reply": Fault(Kind.DELAY, seconds=0.1),
}
LASTING = {
    "500": Fault(Kind.STATUS, number=500, times=ALWAYS),
    "503": Fault(Kind.STATUS, number=503, times=ALWAYS),
    "429": Fault(Kind.STATUS, number=429, times=ALWAYS),
    "reset before": Fault(Kind.RESET_BEFORE, times=ALWAYS),
    "hang": Fault(Kind.HANG_BEFORE, times=ALWAYS),
}
WRITING = {
    **PASSING,
    "hang after": Fault(Kind.HANG_AFTER),
    "flipped bit": Fault(Kind.FLIP_REQUEST),
}
READING = {
    **PASSING,
    "truncated": Fault(Kind.TRUNCATE),
    "dripping": Fault(Kind.DRIP, seconds=0.001),
}
STEPS = {
    "begin": ("POST", "?uploads"),
    "part": ("PUT", "partNumber=2"),
    "complete": ("POST", "uploadId="),
}


def each(faults: dict[str, Fault]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", faults.values(), ids=faults.keys())


def at(fault: Fault, method: str = "", path_part: str = "") -> Fault:
    """A fresh copy of the fault for such requests."""
    return Fault(
        fault.kind, method, path_part, times=fault.times, number=fault.number, seconds=fault.seconds
    )


@pytest_asyncio.fixture
async def proxy(seaweedfs: S3Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(seaweedfs.port) as proxy:
        yield proxy


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest_asyncio.fixture
async def store(
    seaweedfs: S3Server, proxy: FaultProxy, prefix: str, request: pytest.FixtureRequest
) -> AsyncIterator[RemoteStore]:
    """A store behind the proxy, patient unless the test wants a hasty one."""
    calls: CallLimits = getattr(request, "param", PATIENT)
    store = make_store(seaweedfs.bucket, proxy.url, prefix, calls, TRANSFER)
    yield store
    await store.close()


@pytest_asyncio.fixture
async def patient(
    seaweedfs: S3Server, proxy: FaultProxy, prefix: str
) -> AsyncIterator[RemoteStore]:
    """Another client of the same place, for what comes before and after a fault that stays."""
    store = make_store(seaweedfs.bucket, proxy.url, prefix, PATIENT, TRANSFER)
    yield store
    await store.close()


hasty = pytest.mark.parametrize("store", [HASTY], indirect=True, ids=["hasty"])
# A reply that is late and no fault does not make these ask again.
steady = pytest.mark.parametrize(
    "store",
    [PATIENT._replace(request_seconds=3.0, retries_max=1)],
    indirect=True,
    ids=["steady"],
)


@pytest.mark.feature("T15")
@each(WRITING)
@pytest.mark.parametrize("asked", [False, True], ids=["look first", "condition only"])
async def test_a_put_survives_a_fault_that_passes(
    store: RemoteStore, proxy: FaultProxy, fault: Fault, asked: bool
) -> None:
    if asked:
        assert await store.enforces_conditions()
    proxy.inject(at(fault, "PUT"))
    info = await store.put("a/b", [SMALL])
    assert proxy.count("PUT") >= 1
    assert info == await store.head("a/b")
    assert await store.get("a/b") == SMALL


@each({name: WRITING[name] for name in ("reply lost", "hang after")})
async def test_a_lost_reply_does_not_make_our_object_somebody_elses(
    store: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    assert await store.enforces_conditions()
    proxy.inject(at(fault, "PUT"))
    await store.put("a/b", [SMALL])
    with pytest.raises(ObjectExists):
        await store.put("a/b", [SMALL + b"other"])
    assert await store.get("a/b") == SMALL


@hasty
@each(LASTING)
async def test_a_put_gives_up_on_a_fault_that_stays_and_works_when_it_is_gone(
    store: RemoteStore, patient: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    proxy.inject(at(fault, "PUT"))
    with pytest.raises(StoreUnavailable):
        await store.put("a/b", [SMALL])
    proxy.clear()
    await patient.put("a/b", [SMALL])
    assert await patient.get("a/b") == SMALL


@pytest.mark.feature("T14", "T15")
@each(WRITING)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
async def test_an_upload_in_parts_survives_a_fault_that_passes(
    store: RemoteStore,
    proxy: FaultProxy,
    seaweedfs: S3Server,
    prefix: str,
    step: tuple[str, str],
    fault: Fault,
) -> None:
    method, path_part = step
    proxy.inject(at(fault, method, path_part))
    info = await store.put("a/b", [LARGE])
    assert any(seen.fault for seen in proxy.seen)
    assert info.size_bytes == len(LARGE)
    assert await store.get("a/b", crc32c=crc32c(LARGE)) == LARGE
    # The reply that told the id of an upload leaves one behind that nobody knows.
    left = seaweedfs.unfinished_uploads(prefix)
    lost = step == STEPS["begin"] and fault.kind in (Kind.RESET_AFTER, Kind.HANG_AFTER)
    assert left >= int(lost)
    assert await store.abort_uploads("a/") == left
    assert seaweedfs.unfinished_uploads(prefix) == 0


@pytest.mark.feature("T14")
@steady
@each({name: LASTING[name] for name in ("500", "reset before", "hang")})
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
async def test_an_upload_in_parts_that_fails_for_good_leaves_nothing_behind(
    store: RemoteStore,
    patient: RemoteStore,
    proxy: FaultProxy,
    seaweedfs: S3Server,
    prefix: str,
    step: tuple[str, str],
    fault: Fault,
) -> None:
    proxy.inject(at(fault, *step))
    with pytest.raises(StoreUnavailable):
        await store.put("a/b", [LARGE])
    proxy.clear()
    assert seaweedfs.unfinished_uploads(prefix) == 0
    with pytest.raises(ObjectMissing):
        await patient.head("a/b")
    await patient.put("a/b", [LARGE])
    assert await patient.get("a/b", crc32c=crc32c(LARGE)) == LARGE


@pytest.mark.feature("T14")
async def test_uploads_that_a_crash_left_are_thrown_away_below_their_prefix_only(
    store: RemoteStore, seaweedfs: S3Server, prefix: str
) -> None:
    await store.put("a/kept", [SMALL])
    for key in ("a/1", "a/2", "a/2/deep", "b/1"):
        seaweedfs.begin_upload(f"{prefix}/{key}")
    assert await store.abort_uploads("a/") == 3
    assert seaweedfs.unfinished_uploads(prefix) == 1
    assert await store.abort_uploads("a/") == 0
    assert await store.abort_uploads("b/1") == 1
    assert await store.get("a/kept") == SMALL


@each(PASSING)
async def test_throwing_uploads_away_survives_a_fault_that_passes(
    store: RemoteStore, proxy: FaultProxy, seaweedfs: S3Server, prefix: str, fault: Fault
) -> None:
    seaweedfs.begin_upload(f"{prefix}/a/1")
    proxy.inject(at(fault, "GET"), at(fault, "DELETE"))
    assert await store.abort_uploads("") == 1
    assert seaweedfs.unfinished_uploads(prefix) == 0


@each({**LASTING, "truncated": Fault(Kind.TRUNCATE, times=ALWAYS)})
async def test_throwing_uploads_away_gives_up_on_a_fault_that_stays(
    store: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    proxy.inject(at(fault, "GET"))
    with pytest.raises(StoreUnavailable):
        await store.abort_uploads("")


@pytest.mark.feature("T15", "T16")
@each({**READING, "flipped bit": Fault(Kind.FLIP)})
@pytest.mark.parametrize(("start", "size"), [(0, len(SMALL)), (7, 1000)], ids=["whole", "range"])
async def test_a_get_survives_a_fault_that_passes(
    store: RemoteStore, proxy: FaultProxy, fault: Fault, start: int, size: int
) -> None:
    await store.put("a/b", [SMALL])
    proxy.clear()
    proxy.inject(at(fault, "GET"))
    expected = SMALL[start : start + size]
    assert await store.get("a/b", start, size, crc32c=crc32c(expected)) == expected
    assert proxy.seen[0].fault is fault.kind


@each({**PASSING, "truncated": Fault(Kind.TRUNCATE), "flipped bit": Fault(Kind.FLIP)})
async def test_a_get_in_ranges_survives_a_fault_in_one_of_them(
    store: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    await store.put("a/b", [LARGE])
    proxy.clear()
    proxy.inject(at(fault, "GET"))
    expected = LARGE[100 : 100 + (9 << 20)]
    assert await store.get("a/b", 100, 9 << 20, crc32c=crc32c(expected)) == expected
    assert [seen.fault for seen in proxy.seen].count(fault.kind) == fault.times


@pytest.mark.feature("T16")
async def test_bytes_that_are_damaged_again_and_again_are_never_returned(
    store: RemoteStore, proxy: FaultProxy
) -> None:
    await store.put("a/b", [SMALL])
    proxy.inject(Fault(Kind.FLIP, "GET", times=ALWAYS))
    with pytest.raises(ObjectDamaged):
        await store.get("a/b", crc32c=crc32c(SMALL))


@hasty
@each(
    {
        **LASTING,
        "truncated": Fault(Kind.TRUNCATE, times=ALWAYS),
        "dripping": Fault(Kind.DRIP, seconds=0.2, times=ALWAYS),
    }
)
async def test_a_get_gives_up_on_a_fault_that_stays(
    store: RemoteStore, patient: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    await patient.put("a/b", [SMALL])
    proxy.inject(at(fault, "GET"))
    with pytest.raises(StoreUnavailable):
        await store.get("a/b", 0, len(SMALL))
    proxy.clear()
    assert await patient.get("a/b") == SMALL


@each(READING)
async def test_a_listing_survives_a_fault_that_passes(
    store: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    infos = [await store.put(f"a/{n}", [SMALL]) for n in range(9)]
    proxy.inject(at(fault, "GET", "list-type"))
    assert [info async for info in store.list("a/")] == infos


@hasty
@each({**LASTING, "truncated": Fault(Kind.TRUNCATE, times=ALWAYS)})
async def test_a_listing_gives_up_on_a_fault_that_stays(
    store: RemoteStore, patient: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    await patient.put("a/b", [SMALL])
    proxy.inject(at(fault, "GET", "list-type"))
    with pytest.raises(StoreUnavailable):
        _ = [info async for info in store.list("a/")]


@each(PASSING)
async def test_head_and_delete_survive_a_fault_that_passes(
    store: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    info = await store.put("a/b", [SMALL])
    proxy.inject(at(fault, "HEAD"), at(fault, "DELETE"))
    assert await store.head("a/b") == info
    await store.delete("a/b")
    with pytest.raises(ObjectMissing):
        await store.head("a/b")


@hasty
@each(LASTING)
async def test_head_and_delete_give_up_on_a_fault_that_stays(
    store: RemoteStore, patient: RemoteStore, proxy: FaultProxy, fault: Fault
) -> None:
    await patient.put("a/b", [SMALL])
    proxy.inject(at(fault, "HEAD"), at(fault, "DELETE"))
    with pytest.raises(StoreUnavailable):
        await store.head("a/b")
    with pytest.raises(StoreUnavailable):
        await store.delete("a/b")


@steady
async def test_a_refusal_is_not_tried_again_and_not_called_an_outage(
    store: RemoteStore, proxy: FaultProxy
) -> None:
    proxy.inject(Fault(Kind.STATUS, number=403, times=ALWAYS))
    for call in (store.put("a/b", [SMALL]), store.get("a/b", 0, 1), store.delete("a/b")):
        before = len(proxy.seen)
        with pytest.raises(ObjectStoreError) as error:
            await call
        assert type(error.value) is ObjectStoreError
        assert "403" in str(error.value)
        assert len(proxy.seen) == before + 1


async def test_a_bucket_that_is_not_there_is_not_a_missing_object(
    proxy: FaultProxy, prefix: str
) -> None:
    store = make_store("no-such-bucket", proxy.url, prefix, PATIENT, TRANSFER)
    for call in (store.get("a/b", 0, 1), store.put("a/b", [SMALL]), store.abort_uploads("")):
        with pytest.raises(ObjectStoreError) as error:
            await call
        assert type(error.value) is ObjectStoreError
    await store.close()


@pytest.mark.feature("T14")
async def test_no_more_parts_are_on_their_way_than_allowed(
    seaweedfs: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    body = os.urandom(8 * PART_BYTES)
    proxy.watched = "partNumber="
    proxy.inject(Fault(Kind.DELAY, "PUT", "partNumber=", seconds=0.05, times=ALWAYS))
    for allowed in (1, 3):
        proxy.under_way_max = 0
        transfer = TransferLimits(PART_BYTES, parts_in_flight=allowed)
        store = make_store(seaweedfs.bucket, proxy.url, f"{prefix}{allowed}", PATIENT, transfer)
        await store.put("a/b", [body])
        await store.close()
        assert proxy.under_way_max == allowed
