"""Stores across the network through opendal: s3, gcs, azblob; and its own memory, for tests.

Correctness does not depend on conditional writes; where a store enforces them they decide a race.
A name that is taken may be taken by ourselves, if the reply to our write was lost: what is there is
read back and compared before it counts as somebody else's.
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
from penstock.objects.bandwidth import Bandwidth
from penstock.objects.calls import CallLimits, Calls
from penstock.objects.checksums import (
    READ_BYTES,
    check_crc32c,
    pieces_crc32c,
    pieces_md5,
    stored_crc32c,
)
from penstock.objects.failures import Failure, Meaning
from penstock.objects.interface import (
    Buffer,
    ObjectDamaged,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
)
from penstock.objects.keys import PROBE_PREFIX, check_key, check_prefix
from penstock.objects.transfer import TransferLimits, part_size, slices

PUT_ATTEMPTS_MAX: Final = 3
"""Whole writes, when the bytes were damaged on the way or a name was freed meanwhile."""

LISTED_MAX: Final = 1_000_000
"""Keys put in order here, for a store that does not list in key order."""

TELLING_MD5: Final = ("gcs",)
"""Stores that are sent no checksum, and tell the MD5 of all the bytes they have got."""

Found = list[ObjectInfo]


class Uploads(Protocol):
    """Uploads in parts that were begun and not completed."""

    async def abort(self, prefix: str, *, exactly: bool = False, before: str | None = None) -> int:
        """Remove those of keys that start with `prefix`, or of that key alone; how many.

        With `before`, only those of keys that come before it.
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
        self._calls = Calls(operator, calls)
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
        """The object that has the name, if it has these bytes; raises ObjectExists."""
        if found.size_bytes != size or await stored_crc32c(self, found.key, size) != crc:
            raise ObjectExists(found.key)
        return found

    async def _written(self, key: str, pieces: Sequence[Buffer], size: int) -> ObjectInfo | None:
        """What is there now; None where the store's MD5 told that the bytes came damaged.

        Then the object is removed: it was ours, and nobody was told of it.
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
        """Whether the store took it; if not, the name is taken or the bytes came damaged."""
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
                # Missing is an upload that somebody else, who failed or won, has thrown away.
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
            reads = [asyncio.create_task(self._range(key, *span)) for span in batch]
            try:
                found += await asyncio.gather(*reads)
            finally:
                for read in reads:
                    read.cancel()
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
        """Write a name twice, and names whose order a store of directories gets wrong.

        Of a store that goes away meanwhile a few small objects are not removed: it is not waited
        for once more.
        """
        names = sorted(f"{folder}{name}" for name in ("a/1", "a-1", "b", "B"))
        taken = [await self._create(name) for name in [names[0], *names]]
        self._conditions = taken[1]
        self._in_order = [info.key async for info in self._listed(folder, "")] == names
        with suppress(ObjectStoreError):
            for name in names:
                await self.delete(name)

    async def _create(self, key: str) -> bool:
        """Whether the name was taken."""
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
