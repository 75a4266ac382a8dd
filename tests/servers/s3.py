"""What the S3 servers of the tests have in common: where they are, who may, making a bucket."""

from __future__ import annotations

import http.client
import uuid
from datetime import UTC, datetime
from typing import Final, NamedTuple

from penstock.config.settings import S3, Cloud
from penstock.objects.signing import Credentials, query_string, quoted_path, signed_headers

ACCESS_KEY: Final = "penstocktestkey"
SECRET_KEY: Final = "penstocktestsecret"
REGION: Final = "us-east-1"
TIMEOUT_SECONDS: Final = 20


class Reply(NamedTuple):
    """Status and body of one exchange."""

    status: int
    body: bytes


class S3Server(NamedTuple):
    """A server on a loopback port, with a bucket in it."""

    port: int
    bucket: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cloud(self, prefix: str | None = None, port: int | None = None, **s3: str) -> Cloud:
        """Configuration of a store under a prefix nobody else uses, perhaps through a proxy."""
        return Cloud(
            backend="s3",
            root=f"s3://{self.bucket}/{prefix or uuid.uuid4().hex}",
            s3=S3(
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
        keys = Credentials(ACCESS_KEY, SECRET_KEY)
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
