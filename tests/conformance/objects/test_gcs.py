"""Behaviour of Google Cloud Storage alone, against Google's testbench."""

import dataclasses
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.objects import ObjectMissing, ObjectStoreError, open_store
from tests.servers.fault_proxy import Fault, FaultProxy, Kind
from tests.servers.testbench import GcsServer

CHUNK = "upload_id="
SMALL, LARGE = b"some bytes " * 100, os.urandom(9 << 20)
FAULTS = {
    "flipped bit": Fault(Kind.FLIP_REQUEST, "PUT", CHUNK),
    "upload given up": Fault(Kind.STATUS, "PUT", CHUNK, number=410),
    "upload forgotten": Fault(Kind.STATUS, "PUT", CHUNK, number=404),
    "busy": Fault(Kind.STATUS, "PUT", CHUNK, number=503),
    "reply lost": Fault(Kind.RESET_AFTER, "PUT", CHUNK),
    "reply to the beginning lost": Fault(Kind.RESET_AFTER, "POST", "uploadType=resumable"),
}


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_the_right_bytes_arrive_whatever_happens_once(
    testbench: GcsServer, tmp_path: Path, fault: Fault, body: bytes, asked: bool
) -> None:
    async with FaultProxy(testbench.port) as proxy:
        cloud = dataclasses.replace(testbench.cloud(proxy.port), part_bytes=5 << 20)
        store = open_store(cloud, tmp_path)
        if asked:
            assert await store.enforces_conditions()
        fault = dataclasses.replace(fault)
        proxy.inject(fault)
        assert (await store.put("a", [body])).size_bytes == len(body)
        assert fault.hits == 1
        assert await store.get("a") == body
        await store.close()


async def test_a_missing_bucket_is_not_reported_as_a_missing_object(
    testbench: GcsServer, tmp_path: Path
) -> None:
    store = open_store(testbench.cloud(bucket="nowhere"), tmp_path)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.head("a"),
        lambda: store.get("a", 0, 1),
        lambda: store.put("a", [SMALL]),
        lambda: store.put("a", [LARGE]),
        lambda: anext(store.list("")),
        store.enforces_conditions,
    ]
    for call in calls:
        with pytest.raises(ObjectStoreError) as error:
            await call()
        assert type(error.value) is ObjectStoreError
    await store.close()


@pytest.mark.parametrize("sentence", ["The specified bucket", "Bucket penstock"])
async def test_a_missing_object_is_missing_with_any_key(
    testbench: GcsServer, tmp_path: Path, sentence: str
) -> None:
    store = open_store(testbench.cloud(), tmp_path)
    for key in (f"message: {sentence} does not exist.", f'message: "{sentence} does not exist.'):
        with pytest.raises(ObjectMissing):
            await store.head(key)
    await store.close()
