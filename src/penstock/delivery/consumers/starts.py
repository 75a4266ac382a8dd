"""Where a consumer begins: its deliver policy, looked up in its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.terms import cover, filters_of
from penstock.model.subjects import Filter
from penstock.topics.streams.stream import SUBJECTS_PAGE, Stream
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.times import parse_time

_EVERYTHING: Final = (Filter.parse(b">"),)


class Beginning(NamedTuple):
    """The first offset, and with `last_per_subject` up to where only last messages count."""

    start: int
    picked_stop: int = 0


async def beginning(stream: Stream, config: ConsumerConfig) -> Beginning:
    """Where a new consumer begins."""
    policy = config.deliver_policy
    if policy == "new":
        return Beginning(stream.next_offset)
    if policy == "by_start_sequence":
        return Beginning(max(config.opt_start_seq - 1, stream.first_offset))
    if policy == "by_start_time":
        # A microsecond that was begun counts, so that nothing before the time is delivered.
        return Beginning(await stream.offset_at(-(-parse_time(config.opt_start_time) // 1000)))
    if policy == "last":
        lasts = [await stream.last(chosen) for chosen in filters_of(config) or _EVERYTHING]
        found = [last for last in lasts if last is not None]
        return Beginning(max(found, default=stream.next_offset))
    if policy == "last_per_subject":
        return Beginning(stream.first_offset, stream.next_offset)
    return Beginning(stream.first_offset)


async def feed(stream: Stream, config: ConsumerConfig, place: Beginning) -> Feed:
    """What a consumer at this place has before it."""
    if place.start < place.picked_stop:
        picked = await _picked(stream, config, place)
        first = picked[0] if picked else place.picked_stop
        return Feed(stream, await _needed(stream, config, first), first, picked, place.picked_stop)
    return Feed(stream, await _needed(stream, config, place.start), place.start)


async def _picked(stream: Stream, config: ConsumerConfig, place: Beginning) -> list[int]:
    """The last offset of every subject that lies between start and stop."""
    found: list[int] = []
    for chosen in filters_of(config):
        after, more = b"", True
        while more:
            page = await stream.subjects(chosen, after, SUBJECTS_PAGE)
            found += [last for _, _, last in page if place.start <= last < place.picked_stop]
            more = len(page) == SUBJECTS_PAGE
            after = page[-1][0] if page else b""
    return sorted(found)


async def _needed(stream: Stream, config: ConsumerConfig, start: int) -> Sequence[Filter]:
    """Its filters; none when they leave out nothing that the stream has or takes."""
    filters = filters_of(config)
    if not filters or not cover(config.filters, stream.config.subjects):
        return filters
    stop = stream.next_offset
    count = sum([await stream.count(chosen, start, stop) for chosen in filters])
    return () if count == stream.count_all(start, stop) else filters
