"""What the S3 servers of the tests have in common: where they are, who may, making a bucket."""

from __future__ import annotations

import http.client
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from opendal import AsyncOperator
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

from penstock.config import CloudSection, S3Section
from penstock.objects.calls import CallLimits
from penstock.objects.remote import RemoteStore
from penstock.objects.s3_credentials import GivenKeys
from penstock.objects.s3_requests import (
    Exchanges,
    S3Credentials,
    query_string,
    quoted_path,
    signed_headers,
)
from penstock.objects.s3_uploads import S3Bucket, S3Uploads
from penstock.objects.transfer import TransferLimits

ACCESS_KEY: Final = "penstocktestkey"
SECRET_KEY: Final = "penstocktestsecret"
REGION: Final = "us-east-1"
TIMEOUT_SECONDS: Final = 20
PATIENT: Final = CallLimits(
    request_seconds=0.5,
    retries_max=6,
    retry_seconds_min=0.02,
    retry_seconds_max=0.2,
    call_seconds=20.0,
)
HASTY: Final = PATIENT._replace(request_seconds=0.3, retries_max=2, call_seconds=2.0)
"""Soon sure that a fault stays; on a busy machine also of one that does not."""


class Reply(NamedTuple):
    """Status and body of one exchange."""

    status: int
    body: bytes


class S3Server(NamedTuple):
    """A server on a loopback port, with a bucket in it."""

    port: int
    bucket: str
    directory: Path | None = None
    """Where a server of plain files has its buckets."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cloud(self, prefix: str | None = None, port: int | None = None, **s3: str) -> CloudSection:
        """Configuration of a store under a prefix nobody else uses, perhaps through a proxy."""
        return CloudSection(
            backend="s3",
            root=f"s3://{self.bucket}/{prefix or uuid.uuid4().hex}",
            s3=S3Section(
                endpoint=f"http://127.0.0.1:{port or self.port}",
                region=REGION,
                access_key=ACCESS_KEY,
                secret_key=SECRET_KEY,
                **s3,
            ),
        )

    def ask(self, method: str, path: str, **query: str) -> Reply:
        """A signed request of our own, past every client."""
        query = {name.replace("_", "-"): value for name, value in query.items()}
        keys = S3Credentials(ACCESS_KEY, SECRET_KEY)
        host = f"127.0.0.1:{self.port}"
        now = datetime.now(UTC)
        headers = signed_headers(method, host, path, query, keys, REGION, now)
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_SECONDS)
        try:
            target = f"{quoted_path(path)}?{query_string(query)}"
            connection.request(method, target, headers=headers)
            response = connection.getresponse()
            return Reply(response.status, response.read())
        finally:
            connection.close()

    def begin_upload(self, key: str) -> None:
        """An upload in parts that nobody will complete."""
        assert self.ask("POST", f"/{self.bucket}/{key}", uploads="").status == 200

    def unfinished_uploads(self, prefix: str = "") -> int:
        reply = self.ask("GET", f"/{self.bucket}", uploads="", prefix=prefix)
        assert reply.status == 200
        return reply.body.count(b"<Upload>")

    def files(self) -> FileSystem:
        """The buckets as pyarrow sees them, with no code of ours between."""
        if self.directory is not None:
            return SubTreeFileSystem(str(self.directory), LocalFileSystem())
        return S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region=REGION,
        )


def make_store(
    bucket: str, url: str, prefix: str, calls: CallLimits, transfer: TransferLimits
) -> RemoteStore:
    """A store with limits that no configuration allows."""
    operator = AsyncOperator(
        "s3",
        bucket=bucket,
        root=f"/{prefix}/",
        region=REGION,
        endpoint=url,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        checksum_algorithm="crc32c",
        disable_config_load="true",
        disable_ec2_metadata="true",
    )
    keys = GivenKeys(S3Credentials(ACCESS_KEY, SECRET_KEY))
    uploads = S3Uploads(S3Bucket(url, bucket, f"{prefix}/", REGION), keys, Exchanges(PATIENT))
    return RemoteStore("s3", operator, calls, transfer, uploads)
