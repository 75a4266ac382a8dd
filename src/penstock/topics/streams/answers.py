"""What those are told who publish into a stream; nothing, where it wants no acks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.model.errors import PenstockError
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError

Answer = Callable[[Sequence[bytes], Sequence[bytes]], None]
"""Takes replies and what to answer to each."""


class Answers:
    """Of one stream; `b""` is the reply of who does not ask."""

    def __init__(self, stream: Stream, answer: Answer) -> None:
        self._stream, self._answer = stream, answer
        self.name = msgspec.json.encode(stream.name)
        """As it stands in every answer."""

    def tell(self, replies: Sequence[bytes], texts: Sequence[bytes]) -> None:
        """Each its own."""
        if self._stream.config.no_ack:
            return
        if b"" in replies:
            asked = [place for place, reply in enumerate(replies) if reply]
            replies, texts = [replies[place] for place in asked], [texts[place] for place in asked]
        if replies:
            self._answer(replies, texts)

    def refuse(self, replies: Sequence[bytes], error: PenstockError) -> None:
        """All for the same reason."""
        api = api_error(error)
        body = {"error": api.document(), "stream": self._stream.name, "seq": 0}
        self.tell(replies, [msgspec.json.encode(body)] * len(replies))

    def duplicate(self, reply: bytes, sequence: int) -> None:
        """It is stored already."""
        self.tell([reply], [b'{"stream":%b,"seq":%d,"duplicate": true}' % (self.name, sequence)])

    def batch(self, reply: bytes, sequence: int, batch: bytes, count: int) -> None:
        """A whole batch is stored; its last message has this sequence."""
        text = b'{"stream":%b,"seq":%d,"batch":%b,"count":%d}'
        self.tell([reply], [text % (self.name, sequence, quoted(batch), count)])


def api_error(error: PenstockError) -> ApiError:
    """As clients know it."""
    return error if isinstance(error, ApiError) else errors.STORE_FAILED.error(str(error))


def quoted(text: bytes) -> bytes:
    """As it stands in JSON."""
    return msgspec.json.encode(text.decode(errors="replace"))
