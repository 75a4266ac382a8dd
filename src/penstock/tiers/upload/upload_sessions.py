"""Settles recorded uploads that nobody has seen end: completes them or aborts them.

The uploads of a topic's former owner are settled before the log is opened: without the former
owner's disk, the log counts its frames from the end of the manifest. A broker's own failed uploads
are aborted, since otherwise every attempt would leave an object in the bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import structlog
from crc32c import crc32c

from penstock.host.entropy import unique_name
from penstock.objects import READ_BYTES, ObjectMissing, ObjectStore, ObjectStoreError, stored_crc32c
from penstock.tiers.counters import TierCounters
from penstock.tiers.manifest.entries import ObjectEntry, UploadSession
from penstock.tiers.manifest.manifest import Manifest

_events = structlog.get_logger(__name__)


async def settle_sessions(
    manifest: Manifest,
    store: ObjectStore,
    counters: TierCounters,
    epoch: int,
    trash_until_us: int,
) -> None:
    """Complete the uploads that are intact and continue the manifest; abort all others."""
    aborted: list[UploadSession] = []
    for session in await manifest.sessions():
        entry = session.entry
        follows = entry.first_frame == manifest.head.uploaded_frame
        if follows and await is_intact(store, entry):
            await _complete(manifest, store, entry, epoch)
            counters.sessions_completed += 1
        elif await manifest.abandon_session(session, trash_until_us):
            aborted.append(session)
        _events.info("upload_session_settled", object=entry.object_id)
    await _delete_aborted(store, counters, aborted)


async def abort_failed(
    manifest: Manifest,
    store: ObjectStore,
    counters: TierCounters,
    object_ids: Collection[str],
    trash_until_us: int,
) -> None:
    """Abort this broker's uploads of these objects."""
    if not object_ids:
        return
    sessions = {session.entry.object_id: session for session in await manifest.sessions()}
    aborted: list[UploadSession] = []
    for object_id in object_ids:
        session = sessions.get(object_id)
        if session is None:
            manifest.sessions_recorded.pop(object_id, None)
        elif await manifest.abandon_session(session, trash_until_us):
            aborted.append(session)
    await _delete_aborted(store, counters, aborted)


async def is_intact(store: ObjectStore, entry: ObjectEntry) -> bool:
    """Whether the store returns exactly the bytes of the entry's object when it is read."""
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


async def _delete_aborted(
    store: ObjectStore, counters: TierCounters, aborted: Sequence[UploadSession]
) -> None:
    """Delete the data of aborted uploads, unless the store fails.

    They are deleted again with the trash, since the store may still process one of their requests.
    """
    counters.sessions_aborted += len(aborted)
    try:
        for session in aborted:
            await store.abort_uploads(session.object_id)
            await store.delete(session.object_id)
    except ObjectStoreError as error:
        _events.warning("failed_uploads_left", count=len(aborted), reason=str(error))
