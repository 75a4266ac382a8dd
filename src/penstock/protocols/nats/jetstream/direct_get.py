"""Direct gets: messages of a stream by sequence, subject or time, as they are stored.

`$JS.API.DIRECT.GET.<stream>` with a request, or with the subject of the message behind the name.
Gets by sequence that follow one another are read and answered as one run, at once where the
messages are in memory. A stream that does not allow direct gets has nobody who answers.

A mirror that has all its origin has answers for it too: which message is meant is request of the
origin as long as that is served here, so no answer is older than what was acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Sequence
from typing import Final

from penstock.host.tasks import Tasks
from penstock.log import NotInMemory
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import PenstockError
from penstock.model.subject_tree import has_wildcards
from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.exchange import Exchange, PublishTarget
from penstock.protocols.nats.jetstream.api import PREFIX
from penstock.protocols.nats.jetstream.direct_batch import (
    NOT_FOUND,
    DirectBatches,
    DirectReplies,
    blocks_of,
)
from penstock.protocols.nats.jetstream.message_api import requested_offset
from penstock.streams import Rows, Stream, Streams
from penstock.wire.jetstream import levels
from penstock.wire.jetstream.requests import (
    DirectGet,
    DirectRefusal,
    parse_direct_get,
    parse_direct_get_subject,
)
from penstock.wire.parser import Publishes

DIRECT_GET: Final = PREFIX + b"DIRECT.GET."
RUNNING_MAX: Final = 1024
"""The most gets in progress that are not answered from memory; others are refused."""
RUN_BYTES: Final = 1 << 20
"""The most bytes of one read for a run of gets."""
SEQUENCE_DIGITS_MAX: Final = 18
TOO_MANY: Final = b"Too Many Requests"

_BY_SEQUENCE: Final = b'{"seq":'
_BETWEEN: Final = b'}\n{"seq":'


def stream_of(subject: bytes) -> str:
    """The name of the stream in the subject of a direct get."""
    return subject[len(DIRECT_GET) :].partition(b".")[0].decode("utf-8", "replace")


class DirectGets:
    """Answers all direct gets of the server, with one target for each stream."""

    def __init__(self, streams: Streams, exchange: Exchange, batch_bytes_max: int) -> None:
        self.streams = streams
        self.replies = DirectReplies(exchange)
        self.batches = DirectBatches(self.replies, batch_bytes_max)
        self._targets: dict[str, StreamGets] = {}
        self._tasks = Tasks()

    def target(self, subject: bytes) -> PublishTarget | None:
        """The target of a direct-get subject; None if its stream allows no direct gets."""
        name = stream_of(subject)
        if name not in self._targets:
            stream, mirrored = self.streams.get(name), self._mirrored(name)
            if mirrored or (stream is not None and stream.config.allow_direct):
                self._targets[name] = StreamGets(self, name, mirrored=mirrored)
        return self._targets.get(name)

    def changed(self) -> None:
        """Forget cached targets, because streams were created, deleted or changed."""
        self._targets.clear()

    def run_later(self, reply: bytes, work: Awaitable[None]) -> None:
        """Answer in a task, because the message is not in memory; failures are sent to `reply`."""
        self._tasks.start(self._run_or_send_error(reply, work))

    @property
    def full(self) -> bool:
        return len(self._tasks) >= RUNNING_MAX

    async def drained(self) -> None:
        """Wait until every get in progress has its reply."""
        await self._tasks.drain()

    async def _run_or_send_error(self, reply: bytes, work: Awaitable[None]) -> None:
        try:
            await work
        except PenstockError as error:
            self.replies.send_error(reply, error)

    def _mirrored(self, name: str) -> bool:
        return any(
            stream.config.mirror_direct
            and stream.config.mirror is not None
            and stream.config.mirror.name == name
            for stream in self.streams
        )


class StreamGets:
    """Answers the gets of one stream; a target of the exchange."""

    def __init__(self, gets: DirectGets, name: str, *, mirrored: bool) -> None:
        self._gets, self._name, self._mirrored = gets, name, mirrored
        self._subject = DIRECT_GET + name.encode()

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        stream = self._stream()
        if stream is None:
            for subject, reply in zip(run.subjects, run.replies, strict=True):
                if reply:
                    self._gets.replies.send_no_responders(subject, reply)
            return
        count = len(run.payloads)
        if count > 1 and run.headers is None and run.subjects.count(self._subject) == count:
            seqs = sequences_of(run.payloads)
            if seqs is not None and b"" not in run.replies:
                self._take_run(stream, run.replies, seqs)
                return
        blocks = run.headers or [b""] * count
        for subject, reply, block, body in zip(
            run.subjects, run.replies, blocks, run.payloads, strict=True
        ):
            if reply:
                self._take_single(stream, subject, reply, block, body)

    def _stream(self) -> Stream | None:
        stream = self._gets.streams.get(self._name)
        if stream is not None and stream.config.allow_direct:
            return stream
        return next(iter(self._gets.streams.mirrors_of(self._name)), None)

    # -- runs of gets by sequence

    def _take_run(self, stream: Stream, replies: Sequence[bytes], seqs: Sequence[int]) -> None:
        """Answer gets in order: from memory now, then the others in a task."""
        position, blocks, payloads = 0, list[bytes](), list[bytes]()
        while position < len(seqs):
            count = _consecutive(seqs, position)
            rows = _peek(stream, seqs[position] - 1, count)
            if rows is None:
                break
            found_blocks, bodies = _answers(stream.name, rows, seqs[position] - 1, count)
            blocks += found_blocks
            payloads += bodies
            position += len(found_blocks)
        if position:
            self._gets.replies.send_run(replies[:position], blocks, payloads)
        if position < len(seqs):
            self._read_later(stream, replies[position:], seqs[position:])

    def _read_later(self, stream: Stream, replies: Sequence[bytes], seqs: Sequence[int]) -> None:
        if self._gets.full:
            for reply in replies:
                self._gets.replies.send_status(reply, 429, TOO_MANY)
        else:
            self._gets.run_later(replies[0], self._read_run(stream, replies, seqs))

    async def _read_run(
        self, stream: Stream, replies: Sequence[bytes], seqs: Sequence[int]
    ) -> None:
        position = 0
        while position < len(seqs):
            first, count = seqs[position] - 1, _consecutive(seqs, position)
            try:
                rows = await stream.read(first, count, RUN_BYTES if count > 1 else 1)
            except PenstockError as error:
                self._gets.replies.send_error(replies[position], error)
                position += 1
                continue
            blocks, payloads = _answers(stream.name, rows, first, count)
            self._gets.replies.send_run(
                replies[position : position + len(blocks)], blocks, payloads
            )
            position += len(blocks)

    # -- one get

    def _take_single(
        self, stream: Stream, subject: bytes, reply: bytes, block: bytes, body: bytes
    ) -> None:
        replies = self._gets.replies
        if levels.refuses(block):
            replies.send_status(reply, 412, b"Required Api Level")
            return
        request = self._parse(subject, body)
        if isinstance(request, DirectRefusal):
            replies.send_status(reply, 408, request.value)
        elif not self._answer_from_memory(stream, reply, request):
            self._answer_later(stream, reply, request)

    def _parse(self, subject: bytes, body: bytes) -> DirectGet | DirectRefusal:
        if subject == self._subject:
            return parse_direct_get(body)
        message_subject = subject[len(self._subject) + 1 :].decode("utf-8", "replace")
        return parse_direct_get_subject(body, message_subject)

    def _answer_later(self, stream: Stream, reply: bytes, request: DirectGet) -> None:
        gets = self._gets
        if gets.full:
            gets.replies.send_status(reply, 429, TOO_MANY)
        elif request.multi_last:
            gets.run_later(reply, gets.batches.last(stream, reply, request))
        elif request.batch:
            gets.run_later(reply, gets.batches.batch(stream, reply, request))
        else:
            gets.run_later(reply, self._read_single(stream, reply, request))

    def _answer_from_memory(self, stream: Stream, reply: bytes, request: DirectGet) -> bool:
        """Answer from memory if possible; returns whether it was."""
        if request.start_time or request.next_by_subj or request.batch or request.multi_last:
            return False
        offset: int = request.seq - 1
        if request.last_by_subj:
            subject = request.last_by_subj.encode()
            # The index would search for a message with the wildcards in its subject.
            if has_wildcards(subject):
                return False
            last = stream.partition.subjects.cached_last(subject)
            if last is None or isinstance(last, NotInMemory):
                return False
            offset = last
        reader = self._reader(stream)
        rows = reader.peek_one(offset)
        if rows is None or (reader is not stream and not stream.count_all(offset, offset + 1)):
            return False
        self._gets.replies.send_message(reply, reader.name, rows, bare=request.no_hdr)
        return True

    async def _read_single(self, stream: Stream, reply: bytes, request: DirectGet) -> None:
        offset = await requested_offset(
            stream,
            seq=request.seq,
            last_by=request.last_by_subj,
            next_by=request.next_by_subj,
            start_time=request.start_time,
        )
        # A mirror shares the load; the origin answers if the mirror lacks the message.
        readers = [self._reader(stream), stream] if self._mirrored else [stream]
        if offset is not None and stream.count_all(offset, offset + 1):
            for reader in readers:
                rows = await reader.get(offset)
                if rows.count:
                    self._gets.replies.send_message(reply, reader.name, rows, bare=request.no_hdr)
                    return
        self._gets.replies.send_status(reply, 404, b"Message Not Found")

    def _reader(self, stream: Stream) -> Stream:
        """The stream itself, or a random one of its complete mirrors."""
        if not self._mirrored:
            return stream
        return random.choice([stream, *self._gets.streams.mirrors_of(stream.name)])  # noqa: S311


def sequences_of(bodies: Sequence[bytes]) -> list[int] | None:
    """The sequences of a run of gets; None if one of them is not by sequence alone."""
    joined = b"\n".join(bodies)
    if not (joined.startswith(_BY_SEQUENCE) and joined.endswith(b"}")):
        return None
    texts = joined[len(_BY_SEQUENCE) : -1].split(_BETWEEN)
    if len(texts) != len(bodies) or not b"".join(texts).isdigit():
        return None
    if max(map(len, texts)) > SEQUENCE_DIGITS_MAX or not all(texts):
        return None
    seqs = list(map(int, texts))
    return seqs if min(seqs) else None


def _consecutive(seqs: Sequence[int], position: int) -> int:
    """The number of consecutive sequences from `place` on."""
    first, remaining = seqs[position], len(seqs) - position
    expected = range(first, first + remaining)
    if seqs[-1] == expected[-1] and list(seqs[position:]) == list(expected):
        return remaining
    count = 1
    while count < remaining and seqs[position + count] == first + count:
        count += 1
    return count


def _peek(stream: Stream, offset: int, count: int) -> Rows | AtHead | Gone | None:
    """The messages from memory; None if they must be read.

    After an error they are read, too: the read meets the same error and reports it.
    """
    try:
        return stream.peek(offset, count, RUN_BYTES if count > 1 else 1)
    except PenstockError:
        return None


def _answers(
    stream: str, rows: Rows | AtHead | Gone, first: int, count: int
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Headers and payloads for gets from offset `first` on, as far as `found` covers them."""
    if isinstance(rows, Gone):
        count = max(1, min(count, rows.earliest - first))
    if not isinstance(rows, Rows) or not rows.count:
        return [NOT_FOUND] * count, [b""] * count
    blocks, last = blocks_of(stream, rows), rows.offsets[-1]
    if rows.count == count == last + 1 - first:
        return blocks, rows.payloads
    count = min(count, last + 1 - first)
    by_offset = {offset: at for at, offset in enumerate(rows.offsets)}
    positions = [by_offset.get(offset) for offset in range(first, first + count)]
    return (
        [NOT_FOUND if at is None else blocks[at] for at in positions],
        [b"" if at is None else rows.payloads[at] for at in positions],
    )
