"""Empties a stream: all of it, what came before a sequence, or all but the newest."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from penstock.model.errors import NameInvalid
from penstock.model.subjects import Filter
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream.requests import PurgeRequest

DELETED_AT_ONCE: Final = 10_000


async def purge(stream: Stream, asked: PurgeRequest) -> int:
    """How many messages were removed, durably. What comes meanwhile stays."""
    stop = stream.next_offset if not asked.seq else min(asked.seq - 1, stream.next_offset)
    try:
        chosen = Filter.parse(asked.filter.encode()) if asked.filter else None
    except (NameInvalid, UnicodeEncodeError):
        return 0
    if chosen is None or chosen.everything:
        return await _purge_all(stream, stop, asked.keep)
    return await _purge_chosen(stream, chosen, stop, asked.keep)


async def _purge_all(stream: Stream, stop: int, keep: int) -> int:
    first = stream.first_offset
    if keep:
        span = range(first, stop + 1)
        stop = span[bisect_left(span, -keep, key=lambda start: -stream.count_all(start, stop))]
    count = stream.count_all(first, stop)
    if count:
        await stream.purge(stop)
    return count


async def _purge_chosen(stream: Stream, chosen: Filter, stop: int, keep: int) -> int:
    first: int = stream.first_offset
    left = total = max(await stream.count(chosen, first, stop) - keep, 0)
    while left:
        offsets = await stream.matching(chosen, first, min(left, DELETED_AT_ONCE))
        offsets = [offset for offset in offsets if offset < stop]
        if not offsets:
            return total - left
        await stream.delete(offsets, "purge")
        left -= len(offsets)
        first = offsets[-1] + 1
    return total
