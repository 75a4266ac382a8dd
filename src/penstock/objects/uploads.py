"""Uploads in parts to S3 that were begun and never completed: found and thrown away.

opendal does not tell the id of an upload and cannot list them, so these two requests are our own.
Parts that nobody completes are kept, and paid for, until somebody aborts their upload.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit
from xml.etree import ElementTree

import structlog

from penstock.host.clock import Clock
from penstock.objects.exchanges import Exchanges, NoReply, Reply
from penstock.objects.interface import ObjectStoreError, StoreUnavailable
from penstock.objects.signing import Credentials, query_string, quoted_path, signed_headers

ROUNDS_MAX: Final = 3
"""A part that arrives while its upload is aborted may survive it, so the list is read again."""

PAGE_UPLOADS: Final = 1000

_NOT_OFFERED: Final = (405, 501)
_NO_UPLOAD: Final = "NoSuchUpload"
_events = structlog.get_logger()


class Bucket(NamedTuple):
    """Where requests go: path style is `endpoint/bucket/key`, else `bucket.endpoint/key`."""

    endpoint: str
    name: str
    root: str
    """Before every key: empty, or with a slash at its end."""
    region: str
    path_style: bool = True


class Upload(NamedTuple):
    """One upload, by the store's full key."""

    key: str
    id: str


class Keys(Protocol):
    """Where the keys to sign with come from."""

    async def find(self) -> Credentials | None: ...

    async def close(self) -> None: ...


class S3Uploads:
    """The unfinished uploads of one bucket."""

    def __init__(
        self,
        bucket: Bucket,
        keys: Keys,
        exchanges: Exchanges,
        page_uploads: int = PAGE_UPLOADS,
    ) -> None:
        self._bucket = bucket
        self._keys = keys
        self._exchanges = exchanges
        self._page_uploads = page_uploads
        self._clock = Clock()

    async def abort(self, prefix: str, *, exactly: bool = False, before: str | None = None) -> int:
        """Remove uploads of keys that start with `prefix`, or of that key alone; how many.

        With `before`, only those of keys that come before it.

        Raises ObjectStoreError. Without keys to sign with, none are removed and an event says so.
        """
        if await self._keys.find() is None:
            _events.warning("uploads_not_removed", prefix=prefix, reason="no keys to sign with")
            return 0
        root = self._bucket.root
        wanted, end = root + prefix, None if before is None else root + before
        aborted: set[Upload] = set()
        for _ in range(ROUNDS_MAX):
            found = [
                upload
                async for upload in self._list(wanted)
                if (not exactly or upload.key == wanted) and (end is None or upload.key < end)
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

    async def _list(self, prefix: str) -> AsyncIterator[Upload]:
        query = {"uploads": "", "prefix": prefix, "max-uploads": str(self._page_uploads)}
        while True:
            reply = await self._ask("GET", "", query, prefix)
            if reply.status in _NOT_OFFERED:
                return
            if reply.status == 404 and (code := _error_code(reply.body)) != _NO_UPLOAD:
                raise ObjectStoreError(prefix, f"status 404: {code}")
            page = _parsed(reply.body, prefix)
            for item in page.iterfind("{*}Upload"):
                yield Upload(_text(item, "Key"), _text(item, "UploadId"))
            marks = {
                "key-marker": _text(page, "NextKeyMarker"),
                "upload-id-marker": _text(page, "NextUploadIdMarker"),
            }
            if _text(page, "IsTruncated") != "true" or marks.items() <= query.items():
                return
            query |= marks

    async def _abort(self, upload: Upload) -> None:
        await self._ask("DELETE", upload.key, {"uploadId": upload.id}, upload.key)

    async def _ask(self, method: str, key: str, query: dict[str, str], about: str) -> Reply:
        """A signed request; what is missing counts as done, any other refusal raises."""
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
        # From the store that holds our data; expat refuses documents that grow.
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
