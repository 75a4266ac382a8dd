"""Uploads on record in the metadata of which nobody saw the end: completed or aborted.

Those of a topic's last owner are settled before the log is opened: one that goes on from the
manifest, without the disk of its predecessor, counts its frames from where the manifest ends. Our
own that failed are aborted, or every attempt of an upload would leave an object in the bucket.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import structlog
from crc32c import crc32c

from penstock.host.entropy import unique_name
from penstock.objects.checksums import READ_BYTES, stored_crc32c
from penstock.objects.interface import ObjectMissing, ObjectStore, ObjectStoreError
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
    for session in await manifest.sessions():
        entry = session.entry
        next_ = entry.first_frame == manifest.head.uploaded_frame
        if next_ and await is_whole(store, entry):
            await _complete(manifest, store, entry, epoch)
            counters.sessions_completed += 1
        else:
            await _abort(manifest, store, counters, session, trash_until_us)
        _events.info("upload_session_settled", object=entry.object_id)


async def abort_failed(
    manifest: Manifest,
    store: ObjectStore,
    counters: TierCounters,
    objects: Collection[str],
    trash_until_us: int,
) -> None:
    """Abort our uploads of these objects; from one that the store does not remove on, later."""
    if not objects:
        return
    found = {session.entry.object_id: session for session in await manifest.sessions()}
    for object_id in objects:
        session = found.get(object_id)
        if session is None or not await manifest.give_up(session):
            manifest.noted.pop(object_id, None)
            continue
        try:
            await _abort(manifest, store, counters, session, trash_until_us)
        except ObjectStoreError as error:
            _events.warning("failed_upload_left", object=object_id, reason=str(error))
            return


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


async def _abort(
    manifest: Manifest,
    store: ObjectStore,
    counters: TierCounters,
    session: Session,
    trash_until_us: int,
) -> None:
    """Remove what is there, now and once more later: a store may still be at work on a request that
    was given up.
    """
    await store.abort_uploads(session.object_id)
    await store.delete(session.object_id)
    await manifest.forget_session(session, trash_until_us)
    counters.sessions_aborted += 1
