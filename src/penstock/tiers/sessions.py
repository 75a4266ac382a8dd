"""Uploads on record in the metadata of which nobody saw the end: completed or aborted.

Those of a topic's last owner are settled before the log is opened: one that goes on from the
manifest, without the disk of its predecessor, counts its frames from where the manifest ends. Our
own that failed are aborted, or every attempt of an upload would leave an object in the bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import structlog
from crc32c import crc32c

from penstock.host.entropy import unique_name
from penstock.objects import READ_BYTES, ObjectMissing, ObjectStore, ObjectStoreError, stored_crc32c
from penstock.tiers.counters import TierCounters
from penstock.tiers.entries import ObjectEntry, Session
from penstock.tiers.manifest import Manifest

_events = structlog.get_logger(__name__)


async def settle(
    manifest: Manifest,
    store: ObjectStore,
    counters: TierCounters,
    epoch: int,
    trash_until_us: int,
) -> None:
    """Complete the ones that are whole and next, oldest first; abort the others."""
    aborted: list[Session] = []
    for session in await manifest.sessions():
        entry = session.entry
        next_ = entry.first_frame == manifest.head.uploaded_frame
        if next_ and await is_whole(store, entry):
            await _complete(manifest, store, entry, epoch)
            counters.sessions_completed += 1
        elif await manifest.give_up(session, trash_until_us):
            aborted.append(session)
        _events.info("upload_session_settled", object=entry.object_id)
    await _remove(store, counters, aborted)


async def abort_failed(
    manifest: Manifest,
    store: ObjectStore,
    counters: TierCounters,
    objects: Collection[str],
    trash_until_us: int,
) -> None:
    """Abort our uploads of these objects."""
    if not objects:
        return
    found = {session.entry.object_id: session for session in await manifest.sessions()}
    aborted: list[Session] = []
    for object_id in objects:
        session = found.get(object_id)
        if session is None:
            manifest.noted.pop(object_id, None)
        elif await manifest.give_up(session, trash_until_us):
            aborted.append(session)
    await _remove(store, counters, aborted)


async def is_whole(store: ObjectStore, entry: ObjectEntry) -> bool:
    """Whether the object is there, byte for byte; read back, since a store may say so and err."""
    try:
        if entry.size <= READ_BYTES:
            data = await store.get(entry.object_id)
            return len(data) == entry.size and crc32c(data) == entry.crc32c
        if (await store.head(entry.object_id)).size_bytes != entry.size:
            return False
        return await stored_crc32c(store, entry.object_id, entry.size) == entry.crc32c
    except ObjectMissing:
        return False


async def _complete(manifest: Manifest, store: ObjectStore, entry: ObjectEntry, epoch: int) -> None:
    info = await store.head(entry.object_id)
    head = msgspec.structs.replace(
        manifest.head,
        change=unique_name(),
        epoch=epoch,
        uploaded_frame=entry.next_frame,
        next_sequence=max(manifest.head.next_sequence, entry.sequence + 1),
    )
    await manifest.commit(head, [msgspec.structs.replace(entry, etag=info.etag)])


async def _remove(store: ObjectStore, counters: TierCounters, aborted: Sequence[Session]) -> None:
    """Remove what is there of uploads that were given up: now, as far as the store lets us, and
    once more with the trash, since it may still be at work on a request of theirs.
    """
    counters.sessions_aborted += len(aborted)
    try:
        for session in aborted:
            await store.abort_uploads(session.object_id)
            await store.delete(session.object_id)
    except ObjectStoreError as error:
        _events.warning("failed_uploads_left", count=len(aborted), reason=str(error))
