"""Deletes objects that jobs of other engines left behind when they died.

The name of an object contains its creation time. An object may be linked or swapped in for a day; a
day later, when no such request can be in progress any more, it may be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.formats.objects import topic_prefix
from penstock.model.errors import RunInvalid
from penstock.tiers.topic_tier import TopicTier

ACCEPTED_SECONDS: Final = 24 * 3600
"""The highest age of an object that is linked or swapped in."""

ABANDONED_SECONDS: Final = 2 * ACCEPTED_SECONDS
"""The age from which an object that is not in the manifest is abandoned."""

KINDS: Final = ("data-", "staged-")
_NAME: Final = re.compile(rf"(?:{'|'.join(KINDS)})(\d{{17}})-")


def created_us(key: str) -> int | None:
    """The creation time in the name of an object; None if it has none."""
    match = _NAME.match(key.rpartition("/")[2])
    return None if match is None else int(match[1])


def check_object_age(keys: Iterable[str], now_us: int) -> None:
    """Raises RunInvalid for objects that are too old to be linked or swapped in."""
    for key in keys:
        created = created_us(key)
        if created is not None and created < now_us - ACCEPTED_SECONDS * 1_000_000:
            raise RunInvalid(f"object {key} is more than a day old: make it anew")


async def delete_abandoned_objects(tier: TopicTier) -> int:
    """Delete the abandoned objects of a topic; returns their number.

    All durable messages must have been uploaded, and no upkeep may run. Raises what the stores
    raise.
    """
    trash = {item.object_id for item in await tier.manifest.trash()}
    deleted = 0
    for kind in KINDS:
        prefix = f"{topic_prefix(tier.topic)}{kind}"
        end = f"{prefix}{tier.clock.now_us() - ABANDONED_SECONDS * 1_000_000:017d}"
        old_keys = []
        async for info in tier.store.list(prefix):
            if info.key >= end:
                break
            old_keys.append(info.key)
        named = {entry.object_id for entry in tier.manifest.index}
        used = named | trash | {*tier.manifest.sessions_recorded}
        abandoned = [key for key in old_keys if key not in used and created_us(key) is not None]
        for key in abandoned:
            await tier.store.delete(key)
        deleted += len(abandoned) + await tier.store.abort_uploads(prefix, end)
    return deleted
