"""Every write requests server-side encryption; credentials are sent to the store only."""

import dataclasses
import os
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from penstock.config import CloudSection
from penstock.objects import ObjectStoreError, open_store
from tests.servers.fault_proxy import Fault, FaultProxy, Kind
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = pytest.mark.feature("T32")

SSE = "x-amz-server-side-encryption"
KMS_KEY = "x-amz-server-side-encryption-aws-kms-key-id"
TOKEN = "penstocktesttoken"
SMALL, LARGE = b"small", os.urandom(6 << 20)


def hasty(cloud: CloudSection) -> CloudSection:
    return dataclasses.replace(cloud, retries_max=0, part_bytes=5 << 20)


async def test_objects_can_be_written_to_and_read_from_an_encrypted_bucket(
    seaweedfs: S3Server, tmp_path: Path
) -> None:
    async with FaultProxy(seaweedfs.port) as proxy:
        cloud = seaweedfs.cloud(port=proxy.port, server_side_encryption="AES256")
        store = open_store(hasty(cloud), tmp_path)
        for key, body in (("small", SMALL), ("large", LARGE)):
            await store.put(key, [body])
            assert await store.get(key) == body
        await store.close()
    begun = [seen.headers for seen in proxy.seen if _begins_an_object(seen.method, seen.target)]
    assert [headers.get(SSE) for headers in begun] == ["AES256", "AES256"]


async def test_the_key_for_encryption_is_named_with_every_object(
    seaweedfs: S3Server, tmp_path: Path
) -> None:
    async with FaultProxy(seaweedfs.port) as proxy:
        proxy.inject(Fault(Kind.STATUS, "PUT", number=400, times=9))
        proxy.inject(Fault(Kind.STATUS, "POST", number=400, times=9))
        cloud = seaweedfs.cloud(
            port=proxy.port, server_side_encryption="aws:kms", sse_kms_key_id="the-key"
        )
        store = open_store(hasty(cloud), tmp_path)
        for key, body in (("small", SMALL), ("large", LARGE)):
            with pytest.raises(ObjectStoreError):
                await store.put(key, [body])
        await store.close()
    begun = [seen.headers for seen in proxy.seen if _begins_an_object(seen.method, seen.target)]
    assert [(headers[SSE], headers[KMS_KEY]) for headers in begun] == [("aws:kms", "the-key")] * 2


async def test_the_token_of_temporary_keys_is_sent_with_every_request(
    seaweedfs: S3Server, tmp_path: Path
) -> None:
    async with FaultProxy(seaweedfs.port) as proxy:
        proxy.inject(Fault(Kind.STATUS, number=403, times=9))
        cloud = seaweedfs.cloud(port=proxy.port, session_token=TOKEN)
        store = open_store(hasty(cloud), tmp_path)
        for call in (store.head("a"), store.put("a", [SMALL]), store.abort_uploads("")):
            with pytest.raises(ObjectStoreError):
                await call
        await store.close()
    assert {seen.headers["x-amz-security-token"] for seen in proxy.seen} == {TOKEN}


@pytest.mark.parametrize("status", [400, 403, 500, 0])
async def test_no_error_and_no_event_contains_a_secret(
    seaweedfs: S3Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    structlog.reset_defaults()
    async with FaultProxy(seaweedfs.port) as proxy:
        kind = Kind.STATUS if status else Kind.RESET_BEFORE
        proxy.inject(Fault(kind, number=status, times=99))
        store = open_store(hasty(seaweedfs.cloud(port=proxy.port, session_token=TOKEN)), tmp_path)
        told = [repr(store)]
        with capture_logs() as events:
            for call in (
                store.put("a", [SMALL]),
                store.put("a", [LARGE]),
                store.get("a", 0, 1),
                store.delete("a"),
                store.abort_uploads(""),
                store.enforces_conditions(),
            ):
                with pytest.raises(ObjectStoreError) as error:
                    await call
                told += [repr(error.value), str(error.getrepr(chain=True, style="native"))]
        await store.close()
    text = "\n".join([*told, repr(events), *capfd.readouterr()])
    assert not [secret for secret in (ACCESS_KEY, SECRET_KEY, TOKEN) if secret in text]


def _begins_an_object(method: str, target: str) -> bool:
    return (method == "PUT" and "partNumber" not in target) or target.endswith("uploads")
