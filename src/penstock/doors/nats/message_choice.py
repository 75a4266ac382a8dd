"""Which message of a stream a get asks for: by sequence, by subject, by time."""

from __future__ import annotations

from penstock.model.errors import NameInvalid
from penstock.model.subjects import Filter
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream.times import parse_time


def subject_filter(text: str) -> Filter | None:
    """None for what no subject can match."""
    try:
        return Filter.parse(text.encode())
    except (NameInvalid, UnicodeEncodeError):
        return None


async def start_offset(stream: Stream, seq: int, start_time: str) -> int:
    """Where looking begins; a time is that of the first message that is not older."""
    if start_time:
        return await stream.offset_at(-(-parse_time(start_time) // 1000))
    return max(seq - 1, 0)


async def chosen_offset(
    stream: Stream, *, seq: int, last_by: str, next_by: str, start_time: str
) -> int | None:
    """The one that is meant; None when there is none. By sequence alone it may be gone."""
    if last_by:
        chosen = subject_filter(last_by)
        return None if chosen is None else await stream.last(chosen)
    offset = await start_offset(stream, seq, start_time)
    if not next_by:
        return offset
    chosen = subject_filter(next_by)
    return None if chosen is None else await stream.next(chosen, offset)
