"""Direct gets of many messages: a batch from a place on, and the last message of many subjects."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.doors.nats.direct_replies import DirectReplies
from penstock.doors.nats.message_choice import start_offset, subject_filter
from penstock.model.subjects import Filter
from penstock.topics.streams.rows import Rows
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream import direct_rows
from penstock.wire.jetstream.requests import DirectGet
from penstock.wire.jetstream.times import parse_time

PART_MESSAGES: Final = 2000
"""Sent at a time; behind each part the client is waited for."""
PART_BYTES: Final = 1 << 20
SUBJECTS_MAX: Final = 1024
"""For one get of last messages."""
FIRST_WINDOW: Final = 1024


class _Progress(NamedTuple):
    """How far a batch is."""

    messages_left: int
    bytes_left: int
    pending: int
    """Messages that fit the request and were not sent."""
    last_seq: int


class DirectBatches:
    """Answers them, in parts that the client can take."""

    def __init__(self, replies: DirectReplies, bytes_max: int) -> None:
        self._replies, self._bytes_max = replies, bytes_max

    async def batch(self, stream: Stream, reply: bytes, asked: DirectGet) -> None:
        """Messages in order, perhaps of some subjects only, then the end of the batch."""
        chosen = subject_filter(asked.next_by_subj or ">")
        offset = await start_offset(stream, asked.seq, asked.start_time)
        pending = 0 if chosen is None else await _count(stream, chosen, offset)
        if chosen is None or not pending:
            self._replies.status(reply, 404, b"Message Not Found")
            return
        progress = _Progress(asked.batch, self._bytes(asked), pending, 0)
        while progress.messages_left > 0 and progress.pending and progress.bytes_left > 0:
            most = min(progress.messages_left, PART_MESSAGES)
            rows = await _rows_from(stream, chosen, offset, most)
            if rows is None:
                break
            offset = rows.offsets[-1] + 1
            sent = await self._part(stream, reply, rows, progress, bare=asked.no_hdr)
            if sent is None:
                return
            progress = sent
        self._replies.end(reply, progress.pending, progress.last_seq)

    async def last(self, stream: Stream, reply: bytes, asked: DirectGet) -> None:
        """The last message of every subject that fits, oldest first, then the end of the batch."""
        bound = await _bound(stream, asked)
        offsets = await self._last_offsets(stream, asked, bound)
        if offsets is None:
            self._replies.status(reply, 413, b"Too Many Results")
            return
        if not offsets:
            self._replies.status(reply, 404, b"No Results")
            return
        most = asked.batch if asked.batch > 0 else len(offsets)
        progress = _Progress(most, self._bytes(asked), len(offsets), 0)
        place = 0
        while place < len(offsets) and progress.messages_left > 0 and progress.bytes_left > 0:
            stop = place + min(progress.messages_left, PART_MESSAGES)
            rows = await stream.read_offsets(offsets[place:stop])
            place = stop
            if rows.count:
                sent = await self._part(stream, reply, rows, progress, bare=False)
                if sent is None:
                    return
                progress = sent
        self._replies.end(reply, progress.pending, progress.last_seq, bound)

    async def _part(
        self, stream: Stream, reply: bytes, rows: Rows, progress: _Progress, *, bare: bool
    ) -> _Progress | None:
        """Send as much of it as may be sent; None when nobody listens any more."""
        rows, size = _within(rows, progress.bytes_left)
        seqs = rows.seqs
        blocks = None
        if not bare:
            blocks = direct_rows.batch_headers(
                stream.name,
                rows.subjects,
                rows.headers,
                seqs,
                rows.timestamps,
                progress.pending,
                progress.last_seq,
            )
        clients = self._replies.send(reply, blocks, rows.payloads)
        for client in clients:
            await client.drained()
        if not clients:
            return None
        return _Progress(
            progress.messages_left - rows.count,
            progress.bytes_left - size,
            max(progress.pending - rows.count, 0),
            seqs[-1],
        )

    async def _last_offsets(self, stream: Stream, asked: DirectGet, bound: int) -> list[int] | None:
        """Offsets of the last messages before `bound`, in order; None when they are too many."""
        lasts: dict[bytes, int] = {}
        for text in asked.multi_last:
            chosen = subject_filter(text)
            rows = [] if chosen is None else await stream.subjects(chosen, b"", SUBJECTS_MAX + 1)
            lasts.update((subject, last) for subject, _, last in rows)
            if len(lasts) > SUBJECTS_MAX:
                return None
        for subject in [subject for subject, last in lasts.items() if last >= bound]:
            found = await _last_before(stream, Filter.parse(subject), bound)
            if found is None:
                del lasts[subject]
            else:
                lasts[subject] = found
        first = await start_offset(stream, asked.seq, asked.start_time)
        return sorted(last for last in lasts.values() if last >= first)

    def _bytes(self, asked: DirectGet) -> int:
        return min(asked.max_bytes, self._bytes_max) if asked.max_bytes > 0 else self._bytes_max


async def _count(stream: Stream, chosen: Filter, offset: int) -> int:
    stop = stream.next_offset
    if chosen.everything:
        return stream.count_all(offset, stop)
    return await stream.count(chosen, offset, stop)


async def _rows_from(stream: Stream, chosen: Filter, offset: int, most: int) -> Rows | None:
    """The next messages that fit; None when there are no more."""
    if not chosen.everything:
        offsets = await stream.matching(chosen, offset, most)
        rows = await stream.read_offsets(offsets)
        return rows if rows.count else None
    offset = max(offset, stream.first_offset)
    found = stream.peek(offset, most, PART_BYTES)
    if found is None:
        found = await stream.read(offset, most, PART_BYTES)
    return found if isinstance(found, Rows) and found.count else None


def _within(rows: Rows, bytes_left: int) -> tuple[Rows, int]:
    """Those up to the one with which the limit is reached, and what they count."""
    blocks = rows.headers or ()
    size = sum(map(len, rows.subjects)) + sum(map(len, rows.payloads)) + sum(map(len, blocks))
    if size < bytes_left:
        return rows, size
    each = map(len, rows.subjects)
    sizes = [subject + len(body) for subject, body in zip(each, rows.payloads, strict=True)]
    if blocks:
        sizes = [size + len(block) for size, block in zip(sizes, blocks, strict=True)]
    sums = list(accumulate(sizes))
    count = min(bisect_left(sums, bytes_left) + 1, rows.count)
    return rows.part(0, count), sums[count - 1]


async def _bound(stream: Stream, asked: DirectGet) -> int:
    """The sequence up to which messages count."""
    if asked.up_to_seq:
        return min(asked.up_to_seq, stream.last_seq)
    if asked.up_to_time:
        return await stream.offset_at(parse_time(asked.up_to_time) // 1000 + 1)
    return stream.last_seq


async def _last_before(stream: Stream, chosen: Filter, stop: int) -> int | None:
    """The last one before an offset, looked for in growing windows."""
    first, width = stream.first_offset, FIRST_WINDOW
    while stop > first:
        start = max(first, stop - width)
        count = await stream.count(chosen, start, stop)
        if count:
            return (await stream.matching(chosen, start, count))[-1]
        if start == first:
            break
        width *= 8
    return None
