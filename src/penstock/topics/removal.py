"""Everything a topic has left behind goes, but for its record, which goes last.

Each step may fail or be cut off; done again from the first, the whole comes to the same end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Final

import structlog

from penstock.formats.objects import topic_prefix
from penstock.metadata.interface import Delete, Entry
from penstock.metadata.ownership import Epoch, NotOwner
from penstock.model.errors import FormatError
from penstock.model.names import TopicName
from penstock.tiers import entries as forms
from penstock.topics.host import TopicHost

DELETES_AT_ONCE: Final = 16
_events = structlog.get_logger(__name__)


async def remove(host: TopicHost, topic: TopicName) -> None:
    """Remove all that there is of a topic that this broker owns, then own it no more.

    Raises what disk and stores raise, and NotOwner when another broker took it over meanwhile.
    """
    epoch = host.ownership.epoch(topic)
    await host.tiers.remove(topic)
    await host.logs.remove(topic)
    await host.store.abort_uploads(topic_prefix(topic))
    await _remove_objects(host, topic, epoch, _named_objects(host, topic))
    # Again, until there are none: an upload that was given up may come through late.
    while await _remove_objects(host, topic, epoch, _objects_below(host, topic)):
        pass
    try:
        await _remove_keys(host, topic)
    finally:
        # Also when no answer came: the owner's key may be gone.
        await host.ownership.release(topic)


async def _remove_objects(
    host: TopicHost, topic: TopicName, epoch: Epoch, names: AsyncIterable[str]
) -> int:
    """Remove these; how many there were."""
    count, some = 0, list[str]()

    async def remove_some() -> None:
        # Asked behind the listing: what an owner finds is not yet of the next topic of this name.
        if not host.ownership.may_ack(topic, epoch):
            raise NotOwner(topic)
        await asyncio.gather(*map(host.store.delete, some))
        some.clear()

    async for name in names:
        count += 1
        some.append(name)
        if len(some) == DELETES_AT_ONCE:
            await remove_some()
    await remove_some()
    return count


async def _objects_below(host: TopicHost, topic: TopicName) -> AsyncIterator[str]:
    async for info in host.store.list(topic_prefix(topic)):
        yield info.key


async def _named_objects(host: TopicHost, topic: TopicName) -> AsyncIterator[str]:
    """Objects that lie elsewhere in the bucket because another writer made them."""
    places: list[tuple[str, Callable[[bytes], forms.ObjectEntry | forms.Trash]]] = [
        (host.keys.objects(topic), forms.decode_entry),
        (host.keys.trash(topic), forms.decode_trash),
    ]
    for prefix, decode in places:
        async for entry in _entries(host, prefix):
            try:
                name = decode(entry.value).object_id
            except FormatError as error:
                _events.error("object_not_removed", key=entry.key, reason=str(error))
                continue
            if not name.startswith(topic_prefix(topic)):
                yield name


async def _entries(host: TopicHost, prefix: str) -> AsyncIterator[Entry]:
    last, more = "", True
    while more:
        page = await host.metadata.range(prefix, last)
        for entry in page.entries:
            last = entry.key
            yield entry
        more = page.more


async def _remove_keys(host: TopicHost, topic: TopicName) -> None:
    """With the owner's key, so that nothing of the owner's comes behind."""
    keys, guard = host.keys, host.ownership.guard(topic)
    changes = [
        Delete(keys.manifest(topic)),
        Delete(keys.objects(topic), prefix=True),
        Delete(keys.links(topic), prefix=True),
        Delete(f"{keys.upload_session(topic)}/", prefix=True),
        Delete(keys.trash(topic), prefix=True),
        Delete(keys.partitions(topic), prefix=True),
        Delete(keys.subscriptions(topic), prefix=True),
        Delete(keys.owner(topic)),
    ]
    if not (await host.metadata.transaction([guard], changes)).succeeded:
        raise NotOwner(topic)
