"""Sends the replies to the publishers of a stream; a stream without acks sends none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from decimal import Decimal

import msgspec

from penstock.model.errors import PenstockError, RunInvalid
from penstock.model.units import Offset, OffsetRange
from penstock.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError

Answer = Callable[[Sequence[bytes], Sequence[bytes], bool], None]
"""Takes reply subjects, the body for each, and whether the bodies confirm a publish."""


class Answers:
    """Sends the replies of one stream; a publisher without a reply subject has `b""`."""

    def __init__(self, stream: Stream, answer: Answer) -> None:
        self._stream, self._answer = stream, answer
        self.name = msgspec.json.encode(stream.name)
        """The stream's name as JSON."""
        # The sequence is filled in with `%`, so that a percent sign in the name must be doubled.
        self._ack = b'{"stream":%b,"seq":%%d}' % self.name.replace(b"%", b"%%")

    def when_durable(
        self,
        stored: asyncio.Future[OffsetRange],
        confirm: Callable[[OffsetRange], None],
        refuse: Callable[[PenstockError], None],
    ) -> None:
        """Call `confirm` when an append is durable, or `refuse` if it fails."""

        def answer(future: asyncio.Future[OffsetRange]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                confirm(future.result())
            elif isinstance(error, PenstockError):
                refuse(error)

        stored.add_done_callback(answer)

    def send(
        self, replies: Sequence[bytes], bodies: Sequence[bytes], confirms: bool = True
    ) -> None:
        """Send each publisher its own body.

        Confirmations are sent only while this broker's lease is valid.
        """
        if self._stream.config.no_ack:
            return
        if b"" in replies:
            pairs = [pair for pair in zip(replies, bodies, strict=True) if pair[0]]
            replies, bodies = [reply for reply, _ in pairs], [body for _, body in pairs]
        if replies:
            self._answer(replies, bodies, confirms)

    def refuse(self, replies: Sequence[bytes], error: PenstockError) -> None:
        """Send the same error to several publishers."""
        api = api_error(error)
        body = {"error": api.document(), "stream": self._stream.name, "seq": 0}
        self.send(replies, [msgspec.json.encode(body)] * len(replies), confirms=False)

    def stored(self, replies: Sequence[bytes], first: Offset) -> None:
        """Confirm messages that have consecutive offsets from `first` on."""
        if any(replies):
            ack = self._ack
            self.send(replies, [ack % seq for seq in range(first + 1, first + len(replies) + 1)])

    def counted(self, replies: Sequence[bytes], first: Offset, totals: Sequence[Decimal]) -> None:
        """Confirm increments with the sums that they resulted in."""
        ack, name = b'{"stream":%b,"seq":%d,"val":"%b"}', self.name
        pairs = enumerate(totals, first + 1)
        self.send(replies, [ack % (name, seq, str(total).encode()) for seq, total in pairs])

    def duplicate(self, reply: bytes, sequence: int) -> None:
        """Confirm a message that is already stored."""
        self.send([reply], [b'{"stream":%b,"seq":%d,"duplicate": true}' % (self.name, sequence)])

    def batch(self, reply: bytes, sequence: int, batch: bytes, count: int) -> None:
        """Confirm a whole batch, whose last message has this sequence."""
        text = b'{"stream":%b,"seq":%d,"batch":%b,"count":%d}'
        self.send([reply], [text % (self.name, sequence, quoted(batch), count)])


def api_error(error: PenstockError) -> ApiError:
    """The error that NATS clients know for this one; one that a retry cannot cure has code 400."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RunInvalid):
        return ApiError(errors.BAD_REQUEST.code, errors.BAD_REQUEST.err_code, str(error))
    return errors.STORE_FAILED.error(str(error))


def quoted(text: bytes) -> bytes:
    """The text as a JSON string."""
    return msgspec.json.encode(text.decode(errors="replace"))
