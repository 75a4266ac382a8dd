"""Objects that do not count and never will: of jobs that died, wherever they were.

Their names tell when they were made. What was staged or proposed is taken for a day; a day later,
when no link or swap of it can be under way any more, it may be removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.formats.objects import topic_prefix
from penstock.model.errors import RunInvalid
from penstock.tiers.tier import TopicTier

TAKEN_SECONDS: Final = 24 * 3600
"""How old what others made may be to be linked, or swapped in."""

LEFT_SECONDS: Final = 2 * TAKEN_SECONDS
"""An object of this age that does not count is a leftover."""

KINDS: Final = ("data-", "staged-")
_NAME: Final = re.compile(rf"(?:{'|'.join(KINDS)})(\d{{17}})-")


def made_us(key: str) -> int | None:
    """When an object was made; None when its name does not tell."""
    match = _NAME.match(key.rpartition("/")[2])
    return None if match is None else int(match[1])


def check_age(keys: Iterable[str], now_us: int) -> None:
    """Raises RunInvalid for objects that are too old to be made to count."""
    for key in keys:
        made = made_us(key)
        if made is not None and made < now_us - TAKEN_SECONDS * 1_000_000:
            raise RunInvalid(f"object {key} is more than a day old: make it anew")


async def sweep(tier: TopicTier) -> int:
    """Remove the leftovers of a topic; how many. Raises what the stores raise.

    Call it when all that is durable was uploaded, and while no upkeep runs.
    """
    waiting = {item.object_id for item in await tier.manifest.trash()}
    swept = 0
    for kind in KINDS:
        prefix = f"{topic_prefix(tier.topic)}{kind}"
        end = f"{prefix}{tier.clock.now_us() - LEFT_SECONDS * 1_000_000:017d}"
        old = []
        async for info in tier.store.list(prefix):
            if info.key >= end:
                break
            old.append(info.key)
        kept = {entry.object_id for entry in tier.manifest.index} | waiting | {*tier.manifest.noted}
        left = [key for key in old if key not in kept and made_us(key) is not None]
        for key in left:
            await tier.store.delete(key)
        swept += len(left) + await tier.store.abort_uploads(prefix, end)
    return swept
