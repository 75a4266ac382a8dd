"""Remote object stores through opendal: S3, Google Cloud Storage and Azure Blob.

Correctness does not depend on conditional writes; if a store enforces them, they decide races. A
name may be taken by a write of ours whose reply was lost, so that the existing object is read back
and compared before it counts as another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

from opendal import AsyncOperator
from opendal.types import Metadata

from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.tasks import Tasks
from penstock.objects.calls import CallLimits, Failure, Meaning, StoreCalls
from penstock.objects.interface import (
    PROBE_PREFIX,
    Buffer,
    ObjectDamaged,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
    check_key,
    check_prefix,
)
from penstock.objects.transfer import (
    READ_BYTES,
    Bandwidth,
    TransferLimits,
    check_crc32c,
    part_size,
    pieces_crc32c,
    pieces_md5,
    slices,
    stored_crc32c,
)

PUT_ATTEMPTS_MAX: Final = 3
"""Attempts of a whole write, if bytes were damaged on their way or a name was freed meanwhile."""

LISTED_MAX: Final = 1_000_000
"""Maximum keys that are sorted in memory, for stores that do not list in key order."""

TELLING_MD5: Final = ("gcs",)
"""Stores that receive no checksum with a write, but report the MD5 of an object."""

Found = list[ObjectInfo]


class Uploads(Protocol):
    """The unfinished uploads in parts of a bucket."""

    async def abort(self, prefix: str, *, exactly: bool = False, before: str | None = None) -> int:
        """Abort uploads of keys that start with `prefix`, or exactly of it; returns their number.

        With `before`, only uploads of keys that come before it.
        """

    async def close(self) -> None: ...


class RemoteStore:
    """A bucket and prefix behind an operator of opendal."""

    def __init__(
        self,
        backend: str,
        operator: AsyncOperator,
        calls: CallLimits,
        transfer: TransferLimits,
        uploads: Uploads | None = None,
    ) -> None:
        self._backend = backend
        self._calls = StoreCalls(operator, calls)
        self._operator = self._calls.operator
        self._transfer = transfer
        self._uploads = uploads
        self._bandwidth = Bandwidth(transfer.bytes_per_second, Clock())
        self._can = operator.capability()
        self._conditions: bool | None = None
        self._in_order = False

    def __repr__(self) -> str:
        return f"RemoteStore({self._operator!r})"

    @property
    def backend(self) -> str:
        return self._backend

    async def put(self, key: str, pieces: Sequence[Buffer]) -> ObjectInfo:
        check_key(key)
        size, crc = sum(memoryview(piece).nbytes for piece in pieces), pieces_crc32c(pieces)
        look_first = not self._conditions
        for _ in range(PUT_ATTEMPTS_MAX):
            if look_first and (found := await self._look(key)) is not None:
                return await self._same(found, size, crc)
            if await self._write(key, pieces, size):
                written = await self._written(key, pieces, size)
                if written is not None:
                    return written
            look_first = True
        raise StoreUnavailable(key, f"not written in {PUT_ATTEMPTS_MAX} attempts")

    async def get(
        self, key: str, start: int = 0, size: int | None = None, *, crc32c: int | None = None
    ) -> bytes:
        check_key(key)
        if not size:
            have = (await self.head(key)).size_bytes
            size = have - start if size is None else 0
            if not 0 <= start <= start + size <= have:
                raise ObjectStoreError(key, f"byte {start} is not in its {have}")
        try:
            return check_crc32c(key, await self._ranges(key, start, size), crc32c)
        except ObjectDamaged:
            return check_crc32c(key, await self._ranges(key, start, size), crc32c)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return _info(key, await self._stat(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        check_prefix(after)
        if self._in_order:
            last = ""
            async for info in self._listed(prefix, after):
                if info.key <= last:
                    raise ObjectStoreError(prefix, "the store did not list in key order")
                last = info.key
                if info.key > after:
                    yield info
            return
        found: Found = []
        async for info in self._listed(prefix, ""):
            if len(found) == LISTED_MAX:
                raise ObjectStoreError(prefix, f"over LISTED_MAX, {LISTED_MAX} objects to order")
            if info.key > after:
                found.append(info)
        for info in sorted(found):
            yield info

    async def delete(self, key: str) -> None:
        check_key(key)
        try:
            await self._calls.run(self._operator.delete(key))
        except Failure as failure:
            if failure.meaning is not Meaning.MISSING:
                raise failure.about(key) from None

    async def abort_uploads(self, prefix: str, before: str | None = None) -> int:
        check_prefix(prefix)
        return 0 if self._uploads is None else await self._uploads.abort(prefix, before=before)

    async def enforces_conditions(self) -> bool:
        if self._conditions is None:
            try:
                await self._probe(f"{PROBE_PREFIX}{unique_name()}/")
            except Failure as failure:
                raise failure.about(PROBE_PREFIX) from None
        return bool(self._conditions)

    async def close(self) -> None:
        await self._calls.close()
        if self._uploads is not None:
            await self._uploads.close()

    # -- writing

    async def _look(self, key: str) -> ObjectInfo | None:
        try:
            return await self.head(key)
        except ObjectMissing:
            return None

    async def _same(self, found: ObjectInfo, size: int, crc: int) -> ObjectInfo:
        """Return the existing object if it has these bytes; raises ObjectExists."""
        if found.size_bytes != size or await stored_crc32c(self, found.key, size) != crc:
            raise ObjectExists(found.key)
        return found

    async def _written(self, key: str, pieces: Sequence[Buffer], size: int) -> ObjectInfo | None:
        """The object after a write; None if the store's MD5 shows that its bytes are damaged.

        A damaged object is deleted, as nothing refers to it yet.
        """
        found = await self._stat(key)
        if (there := found.content_length) != size:
            raise ObjectStoreError(key, f"{size} bytes were written, {there} are there")
        md5 = found.content_md5 if self._backend in TELLING_MD5 else None
        if md5 and md5 != await asyncio.to_thread(pieces_md5, pieces):
            await self.delete(key)
            return None
        return _info(key, found)

    async def _stat(self, key: str) -> Metadata:
        try:
            return await self._calls.run(self._operator.stat(key))
        except Failure as failure:
            raise failure.about(key) from None

    async def _write(self, key: str, pieces: Sequence[Buffer], size: int) -> bool:
        """Whether the write succeeded; if not, the name is taken or the bytes were damaged."""
        in_parts = size > self._transfer.part_bytes and self._can.write_can_multi
        try:
            if in_parts:
                await self._write_parts(key, pieces, size)
            else:
                await self._bandwidth.wait(size)
                new = self._can.write_with_if_not_exists
                data = b"".join(pieces)
                await self._calls.run(self._operator.write(key, data, if_not_exists=new))
        except Failure as failure:
            if in_parts and self._uploads is not None:
                with suppress(ObjectStoreError):
                    await self._uploads.abort(key, exactly=True)
            if failure.meaning in (Meaning.TAKEN, Meaning.DAMAGED, Meaning.MISSING):
                # MISSING: another writer of this key, failed or successful, aborted the upload.
                return False
            raise failure.about(key) from None
        return True

    async def _write_parts(self, key: str, pieces: Sequence[Buffer], size: int) -> None:
        writer = await self._calls.run(
            self._operator.open(
                key,
                "wb",
                chunk=part_size(size, self._transfer),
                concurrent=self._transfer.parts_in_flight,
                if_not_exists=self._can.write_with_if_not_exists,
            )
        )
        for piece in slices(pieces, READ_BYTES):
            await self._bandwidth.wait(len(piece))
            await self._calls.run(writer.write(piece))
        await self._calls.run(writer.close())

    # -- reading

    async def _ranges(self, key: str, start: int, size: int) -> bytes:
        stop = start + size
        spans = [(at, min(READ_BYTES, stop - at)) for at in range(start, stop, READ_BYTES)]
        found: list[bytes] = []
        at_once = self._transfer.parts_in_flight
        for batch in (spans[n : n + at_once] for n in range(0, len(spans), at_once)):
            reads = Tasks()
            try:
                ranges = [reads.start(self._range(key, *span)) for span in batch]
                found += await asyncio.gather(*ranges)
            finally:
                await reads.cancel()
        return found[0] if len(found) == 1 else b"".join(found)

    async def _range(self, key: str, start: int, size: int) -> bytes:
        try:
            data = await self._calls.run(self._operator.read(key, offset=start, size=size))
        except Failure as failure:
            raise failure.about(key) from None
        if len(data) != size:
            raise ObjectStoreError(key, f"{len(data)} bytes came where {size} were asked")
        return data

    async def _listed(self, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        start = after if after and self._can.list_with_start_after else None
        try:
            listing = await self._calls.run(
                self._operator.list(prefix, recursive=True, start_after=start)
            )
            entries = aiter(listing)
            while True:
                try:
                    entry = await self._calls.run(anext(entries))
                except StopAsyncIteration:
                    return
                if entry.path.startswith(prefix) and not entry.path.endswith("/"):
                    yield _info(entry.path, entry.metadata)
        except Failure as failure:
            raise failure.about(prefix) from None

    # -- finding out

    async def _probe(self, folder: str) -> None:
        """Find out by small objects whether the store has conditional writes and lists in order.

        If the store becomes unavailable meanwhile, the objects stay.
        """
        names = sorted(f"{folder}{name}" for name in ("a/1", "a-1", "b", "B"))
        existed = [await self._create(name) for name in [names[0], *names]]
        self._conditions = existed[1]
        self._in_order = [info.key async for info in self._listed(folder, "")] == names
        with suppress(ObjectStoreError):
            for name in names:
                await self.delete(name)

    async def _create(self, key: str) -> bool:
        """Create an object; whether its name was taken."""
        new = self._can.write_with_if_not_exists
        try:
            await self._calls.run(self._operator.write(key, b"probe", if_not_exists=new))
        except Failure as failure:
            if failure.meaning is not Meaning.TAKEN:
                raise
            return True
        return False


def _info(key: str, found: Metadata) -> ObjectInfo:
    etag = None if found.etag is None else found.etag.strip('"')
    return ObjectInfo(key, found.content_length, etag)
