"""Finds and aborts unfinished multipart uploads to S3.

opendal neither returns the id of an upload nor lists uploads, so that these requests are made here.
S3 stores, and charges for, the parts of an unfinished upload until it is aborted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit
from xml.etree import ElementTree

import structlog

from penstock.host.clock import Clock
from penstock.objects.interface import ObjectStoreError, StoreUnavailable
from penstock.objects.s3_requests import (
    Exchanges,
    NoReply,
    S3Credentials,
    S3Response,
    query_string,
    quoted_path,
    signed_headers,
)

ROUNDS_MAX: Final = 3
"""A part that arrives while its upload is aborted may survive, so that uploads are listed again."""

PAGE_UPLOADS: Final = 1000

_NOT_OFFERED: Final = (405, 501)
_NO_UPLOAD: Final = "NoSuchUpload"
_events = structlog.get_logger()


class S3Bucket(NamedTuple):
    """Address of a bucket: `endpoint/bucket/key` in path style, else `bucket.endpoint/key`."""

    endpoint: str
    name: str
    root: str
    """Prefix of every key: empty, or with a final slash."""
    region: str
    path_style: bool = True


class S3Upload(NamedTuple):
    """An upload; its key includes the prefix of the store."""

    key: str
    id: str


class CredentialSource(Protocol):
    """Provides the credentials to sign with."""

    async def find(self) -> S3Credentials | None: ...

    async def close(self) -> None: ...


class S3Uploads:
    """The unfinished uploads of one bucket."""

    def __init__(
        self,
        bucket: S3Bucket,
        keys: CredentialSource,
        exchanges: Exchanges,
        page_uploads: int = PAGE_UPLOADS,
    ) -> None:
        self._bucket = bucket
        self._keys = keys
        self._exchanges = exchanges
        self._page_uploads = page_uploads
        self._clock = Clock()

    async def abort(self, prefix: str, *, exactly: bool = False, before: str | None = None) -> int:
        """Abort uploads of keys that start with `prefix`, or exactly of it; returns their number.

        With `before`, only uploads of keys that come before it. Raises ObjectStoreError. Without
        credentials, logs a warning and aborts none.
        """
        if await self._keys.find() is None:
            _events.warning("uploads_not_removed", prefix=prefix, reason="no keys to sign with")
            return 0
        root = self._bucket.root
        full_prefix, end = root + prefix, None if before is None else root + before
        aborted: set[S3Upload] = set()
        for _ in range(ROUNDS_MAX):
            found = [
                upload
                async for upload in self._list(full_prefix)
                if (not exactly or upload.key == full_prefix) and (end is None or upload.key < end)
            ]
            for upload in found:
                await self._abort(upload)
            aborted.update(found)
            if not found:
                break
        return len(aborted)

    async def close(self) -> None:
        await self._exchanges.close()
        await self._keys.close()

    async def _list(self, prefix: str) -> AsyncIterator[S3Upload]:
        query = {"uploads": "", "prefix": prefix, "max-uploads": str(self._page_uploads)}
        while True:
            reply = await self._ask("GET", "", query, prefix)
            if reply.status in _NOT_OFFERED:
                return
            if reply.status == 404 and (code := _error_code(reply.body)) != _NO_UPLOAD:
                raise ObjectStoreError(prefix, f"status 404: {code}")
            page = _parsed(reply.body, prefix)
            for item in page.iterfind("{*}Upload"):
                yield S3Upload(_text(item, "Key"), _text(item, "UploadId"))
            marks = {
                "key-marker": _text(page, "NextKeyMarker"),
                "upload-id-marker": _text(page, "NextUploadIdMarker"),
            }
            if _text(page, "IsTruncated") != "true" or marks.items() <= query.items():
                return
            query |= marks

    async def _abort(self, upload: S3Upload) -> None:
        await self._ask("DELETE", upload.key, {"uploadId": upload.id}, upload.key)

    async def _ask(self, method: str, key: str, query: dict[str, str], about: str) -> S3Response:
        """Send a signed request; a missing upload is no error, other refusals raise."""
        credentials = await self._keys.find()
        assert credentials is not None
        scheme, host, base = self._address()
        path = f"{base}/{key}" if key else base or "/"
        when = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC)
        headers = signed_headers(method, host, path, query, credentials, self._bucket.region, when)
        url = f"{scheme}://{host}{quoted_path(path)}?{query_string(query)}"
        try:
            reply = await self._exchanges.ask(method, url, headers)
        except NoReply as error:
            raise StoreUnavailable(about, str(error)) from None
        if reply.may_pass:
            raise StoreUnavailable(about, f"status {reply.status}")
        if reply.status >= 300 and reply.status not in (404, *_NOT_OFFERED):
            raise ObjectStoreError(about, f"status {reply.status}: {_error_code(reply.body)}")
        return reply

    def _address(self) -> tuple[str, str, str]:
        """Scheme, host and the path before keys."""
        parts = urlsplit(self._bucket.endpoint)
        base = parts.path.rstrip("/")
        if self._bucket.path_style:
            return parts.scheme, parts.netloc, f"{base}/{self._bucket.name}"
        return parts.scheme, f"{self._bucket.name}.{parts.netloc}", base


def _parsed(body: bytes, about: str) -> ElementTree.Element:
    try:
        # The reply of the configured store; expat refuses documents that expand.
        return ElementTree.fromstring(body)  # noqa: S314
    except ElementTree.ParseError:
        raise StoreUnavailable(about, "the list of uploads is not XML") from None


def _text(item: ElementTree.Element, name: str) -> str:
    return item.findtext(f"{{*}}{name}") or ""


def _error_code(body: bytes) -> str:
    try:
        return _text(ElementTree.fromstring(body), "Code") or "no reason"  # noqa: S314
    except ElementTree.ParseError:
        return "no reason"
