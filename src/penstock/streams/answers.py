"""Replies to publishers of a stream; a stream without acks sends none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.model.errors import PenstockError, RunInvalid
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

    def tell(self, replies: Sequence[bytes], texts: Sequence[bytes], confirms: bool = True) -> None:
        """Send each its own body; confirmations only while this broker's lease is valid."""
        if self._stream.config.no_ack:
            return
        if b"" in replies:
            asked = [place for place, reply in enumerate(replies) if reply]
            replies, texts = [replies[place] for place in asked], [texts[place] for place in asked]
        if replies:
            self._answer(replies, texts, confirms)

    def refuse(self, replies: Sequence[bytes], error: PenstockError) -> None:
        """Send the same error to all."""
        api = api_error(error)
        body = {"error": api.document(), "stream": self._stream.name, "seq": 0}
        self.tell(replies, [msgspec.json.encode(body)] * len(replies), confirms=False)

    def duplicate(self, reply: bytes, sequence: int) -> None:
        """Confirm a message that is already stored."""
        self.tell([reply], [b'{"stream":%b,"seq":%d,"duplicate": true}' % (self.name, sequence)])

    def batch(self, reply: bytes, sequence: int, batch: bytes, count: int) -> None:
        """Confirm a whole batch, whose last message has this sequence."""
        text = b'{"stream":%b,"seq":%d,"batch":%b,"count":%d}'
        self.tell([reply], [text % (self.name, sequence, quoted(batch), count)])


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
