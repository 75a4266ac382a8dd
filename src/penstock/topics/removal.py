"""Deletes everything that a topic consists of, its record last.

Each step may fail or be interrupted; a repetition from the first step ends in the same state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Final

import structlog

from penstock.formats.objects import topic_prefix
from penstock.metadata import DeleteKeys, MetadataEntry
from penstock.metadata.ownership import Epoch, NotOwner
from penstock.model.errors import FormatError
from penstock.model.names import TopicName
from penstock.tiers import ObjectEntry, Trash, decode_entry, decode_trash
from penstock.topics.host import TopicHost

DELETES_AT_ONCE: Final = 16
_events = structlog.get_logger(__name__)


async def remove(host: TopicHost, topic: TopicName) -> None:
    """Delete all data of a topic that this broker owns, then release it.

    Raises what disk and stores raise, and NotOwner if another broker took it over meanwhile.
    """
    epoch = host.ownership.epoch(topic)
    await host.tiers.remove(topic)
    await host.logs.remove(topic)
    await host.store.abort_uploads(topic_prefix(topic))
    await _remove_objects(host, topic, epoch, _named_objects(host, topic))
    # Until there are none, as an abandoned upload may still succeed.
    while await _remove_objects(host, topic, epoch, _objects_below(host, topic)):
        pass
    try:
        await _remove_keys(host, topic)
    finally:
        # Also without a reply, since the transaction may have deleted the owner's key.
        await host.ownership.release(topic)


async def _remove_objects(
    host: TopicHost, topic: TopicName, epoch: Epoch, names: AsyncIterable[str]
) -> int:
    """Delete these objects; returns their number."""
    count, batch = 0, list[str]()

    async def remove_batch() -> None:
        # Checked after the listing, so that no object of the next topic of this name is deleted.
        if not host.ownership.may_ack(topic, epoch):
            raise NotOwner(topic)
        await asyncio.gather(*map(host.store.delete, batch))
        batch.clear()

    async for name in names:
        count += 1
        batch.append(name)
        if len(batch) == DELETES_AT_ONCE:
            await remove_batch()
    await remove_batch()
    return count


async def _objects_below(host: TopicHost, topic: TopicName) -> AsyncIterator[str]:
    async for info in host.store.list(topic_prefix(topic)):
        yield info.key


async def _named_objects(host: TopicHost, topic: TopicName) -> AsyncIterator[str]:
    """Objects of the topic that other engines wrote to other prefixes of the bucket."""
    prefixes: list[tuple[str, Callable[[bytes], ObjectEntry | Trash]]] = [
        (host.keys.objects(topic), decode_entry),
        (host.keys.trash(topic), decode_trash),
    ]
    for prefix, decode in prefixes:
        async for entry in _entries(host, prefix):
            try:
                name = decode(entry.value).object_id
            except FormatError as error:
                _events.error("object_not_removed", key=entry.key, reason=str(error))
                continue
            if not name.startswith(topic_prefix(topic)):
                yield name


async def _entries(host: TopicHost, prefix: str) -> AsyncIterator[MetadataEntry]:
    last, more = "", True
    while more:
        page = await host.metadata.range(prefix, last)
        for entry in page.entries:
            last = entry.key
            yield entry
        more = page.more


async def _remove_keys(host: TopicHost, topic: TopicName) -> None:
    """Delete all keys, the owner's among them, so that no later write of the owner succeeds."""
    keys, guard = host.keys, host.ownership.guard(topic)
    changes = [
        DeleteKeys(keys.manifest(topic)),
        DeleteKeys(keys.objects(topic), prefix=True),
        DeleteKeys(keys.links(topic), prefix=True),
        DeleteKeys(f"{keys.upload_session(topic)}/", prefix=True),
        DeleteKeys(keys.trash(topic), prefix=True),
        DeleteKeys(keys.partitions(topic), prefix=True),
        DeleteKeys(keys.returned(topic), prefix=True),
        DeleteKeys(keys.subscriptions(topic), prefix=True),
        DeleteKeys(keys.owner(topic)),
    ]
    if not (await host.metadata.transaction([guard], changes)).succeeded:
        raise NotOwner(topic)
