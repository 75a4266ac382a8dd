"""Direct gets of many messages: batches in order, and the last messages of many subjects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.model.errors import PenstockError
from penstock.model.subjects import Filter
from penstock.model.times import parse_time
from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.exchange import Exchange
from penstock.protocols.nats.jetstream.message_api import start_offset, subject_filter
from penstock.streams import Rows, Stream
from penstock.wire import headers as header_blocks
from penstock.wire.jetstream import direct_rows
from penstock.wire.jetstream.requests import DirectGet

NOT_FOUND: Final = header_blocks.status(404, b"Message Not Found")


class DirectReplies:
    """Sends the replies of direct gets."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def send_status(self, reply: bytes, code: int, text: bytes) -> None:
        self._exchange.send(reply, b"", header_blocks.status(code, text), b"")

    def send_error(self, reply: bytes, error: PenstockError) -> None:
        """Send an error status with a one-line reason."""
        self.send_status(reply, 500, b" ".join(str(error).encode().split()))

    def send_message(self, reply: bytes, stream: str, rows: Rows, *, bare: bool) -> None:
        """Send one message; `bare` omits its own headers."""
        block = b"" if bare else blocks_of(stream, rows)[0]
        self._exchange.send(reply, b"", block, rows.payloads[0])

    def send_run(
        self, replies: Sequence[bytes], blocks: Sequence[bytes], payloads: Sequence[bytes]
    ) -> None:
        """Send one reply with headers to each reply subject; usually all of one client."""
        if replies.count(replies[0]) == len(replies):
            self.send(replies[0], blocks, payloads)
            return
        to_all = self._exchange.recipients_of_all(replies)
        if to_all is None:
            for reply, block, payload in zip(replies, blocks, payloads, strict=True):
                self._exchange.send(reply, b"", block, payload)
            return
        for to in to_all:
            to.client.deliver_rows(to, replies, None, blocks, payloads)

    def send(
        self, reply: bytes, blocks: Sequence[bytes] | None, payloads: Sequence[bytes]
    ) -> list[ConnectedClient]:
        """Send a run to one reply subject; returns the clients that received it."""
        to_all = self._exchange.recipients(reply)
        for to in to_all:
            to.client.deliver_rows(to, reply, None, blocks, payloads)
        return [to.client for to in to_all]

    def send_end(self, reply: bytes, pending: int, last_seq: int, up_to: int | None = None) -> None:
        """Send the status that ends a batch."""
        block = direct_rows.end_of_batch(pending, last_seq, up_to)
        self._exchange.send(reply, b"", block, b"")

    def send_no_responders(self, subject: bytes, reply: bytes) -> None:
        self._exchange.no_responders(subject, reply)


def blocks_of(stream: str, rows: Rows) -> list[bytes]:
    """The header blocks of replies."""
    return direct_rows.reply_headers(
        stream, rows.subjects, rows.headers, rows.seqs, rows.timestamps
    )


PART_MESSAGES: Final = 2000
"""The size of one part of a batch; the client must read it before the next part is sent."""
PART_BYTES: Final = 1 << 20
SUBJECTS_MAX: Final = 1024
"""The most subjects in one get of last messages."""
FIRST_WINDOW: Final = 1024


class _Progress(NamedTuple):
    """The progress of one batch."""

    messages_left: int
    bytes_left: int
    pending: int
    """The number of matching messages that were not sent yet."""
    last_seq: int


class DirectBatches:
    """Answers batch requests in parts, at the pace at which the client reads."""

    def __init__(self, replies: DirectReplies, bytes_max: int) -> None:
        self._replies, self._bytes_max = replies, bytes_max

    async def batch(self, stream: Stream, reply: bytes, request: DirectGet) -> None:
        """Send matching messages in order, then the end of the batch."""
        subjects = subject_filter(request.next_by_subj or ">")
        offset = await start_offset(stream, request.seq, request.start_time)
        pending = 0 if subjects is None else await _count(stream, subjects, offset)
        if subjects is None or not pending:
            self._replies.send_status(reply, 404, b"Message Not Found")
            return
        progress = _Progress(request.batch, self._bytes(request), pending, 0)
        while progress.messages_left > 0 and progress.pending and progress.bytes_left > 0:
            most = min(progress.messages_left, PART_MESSAGES)
            rows = await _rows_from(stream, subjects, offset, most)
            if rows is None:
                break
            offset = rows.offsets[-1] + 1
            sent = await self._part(stream, reply, rows, progress, bare=request.no_hdr)
            if sent is None:
                return
            progress = sent
        self._replies.send_end(reply, progress.pending, progress.last_seq)

    async def last(self, stream: Stream, reply: bytes, request: DirectGet) -> None:
        """Send the last message of every matching subject, oldest first, then the end."""
        bound = await _bound(stream, request)
        offsets = await self._last_offsets(stream, request, bound)
        if offsets is None:
            self._replies.send_status(reply, 413, b"Too Many Results")
            return
        if not offsets:
            self._replies.send_status(reply, 404, b"No Results")
            return
        most = request.batch if request.batch > 0 else len(offsets)
        progress = _Progress(most, self._bytes(request), len(offsets), 0)
        start = 0
        while start < len(offsets) and progress.messages_left > 0 and progress.bytes_left > 0:
            stop = start + min(progress.messages_left, PART_MESSAGES)
            rows = await stream.read_offsets(offsets[start:stop])
            start = stop
            if rows.count:
                sent = await self._part(stream, reply, rows, progress, bare=False)
                if sent is None:
                    return
                progress = sent
        self._replies.send_end(reply, progress.pending, progress.last_seq, bound)

    async def _part(
        self, stream: Stream, reply: bytes, rows: Rows, progress: _Progress, *, bare: bool
    ) -> _Progress | None:
        """Send the messages that fit the limits; None if the reply subject has no subscriber."""
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

    async def _last_offsets(
        self, stream: Stream, request: DirectGet, bound: int
    ) -> list[int] | None:
        """The offsets of the last messages before `bound`, in order; None if they are too many."""
        lasts: dict[bytes, int] = {}
        for text in request.multi_last:
            subjects = subject_filter(text)
            rows = (
                [] if subjects is None else await stream.subjects(subjects, b"", SUBJECTS_MAX + 1)
            )
            lasts.update((subject, last) for subject, _, last in rows)
            if len(lasts) > SUBJECTS_MAX:
                return None
        for subject in [subject for subject, last in lasts.items() if last >= bound]:
            last = await _last_before(stream, Filter.exactly(subject), bound)
            if last is None:
                del lasts[subject]
            else:
                lasts[subject] = last
        first = await start_offset(stream, request.seq, request.start_time)
        return sorted(last for last in lasts.values() if last >= first)

    def _bytes(self, request: DirectGet) -> int:
        return min(request.max_bytes, self._bytes_max) if request.max_bytes > 0 else self._bytes_max


async def _count(stream: Stream, subjects: Filter, offset: int) -> int:
    stop = stream.next_offset
    if subjects.everything:
        return stream.count_all(offset, stop)
    return await stream.count(subjects, offset, stop)


async def _rows_from(stream: Stream, subjects: Filter, offset: int, most: int) -> Rows | None:
    """The next matching messages; None if there are no more."""
    if not subjects.everything:
        offsets = await stream.matching(subjects, offset, most)
        rows = await stream.read_offsets(offsets)
        return rows if rows.count else None
    offset = max(offset, stream.first_offset)
    result = stream.peek(offset, most, PART_BYTES)
    if result is None:
        result = await stream.read(offset, most, PART_BYTES)
    return result if isinstance(result, Rows) and result.count else None


def _within(rows: Rows, bytes_left: int) -> tuple[Rows, int]:
    """The rows up to the one that reaches the byte limit, and their size."""
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


async def _bound(stream: Stream, request: DirectGet) -> int:
    """The sequence up to which messages are considered."""
    if request.up_to_seq:
        return min(request.up_to_seq, stream.last_seq)
    if request.up_to_time:
        return await stream.offset_at(parse_time(request.up_to_time) // 1000 + 1)
    return stream.last_seq


async def _last_before(stream: Stream, subjects: Filter, stop: int) -> int | None:
    """The last match before an offset, searched in growing windows."""
    first, width = stream.first_offset, FIRST_WINDOW
    while stop > first:
        start = max(first, stop - width)
        count = await stream.count(subjects, start, stop)
        if count:
            return (await stream.matching(subjects, start, count))[-1]
        if start == first:
            break
        width *= 8
    return None
