"""Sends what direct gets found: runs of messages, and statuses, to reply subjects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.doors.nats.client import Client
from penstock.doors.nats.exchange import Exchange
from penstock.model.errors import PenstockError
from penstock.topics.streams.rows import Rows
from penstock.wire import headers as header_blocks
from penstock.wire.jetstream import direct_rows

NOT_FOUND: Final = header_blocks.status(404, b"Message Not Found")


class DirectReplies:
    """The way back to those who asked."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def status(self, reply: bytes, code: int, text: bytes) -> None:
        self._exchange.send(reply, b"", header_blocks.status(code, text), b"")

    def failed(self, reply: bytes, error: PenstockError) -> None:
        """It could not be answered now; why, in one line."""
        self.status(reply, 500, b" ".join(str(error).encode().split()))

    def found(self, reply: bytes, stream: str, rows: Rows, *, bare: bool) -> None:
        """One message; `bare` is without any headers."""
        block = b"" if bare else blocks_of(stream, rows)[0]
        self._exchange.send(reply, b"", block, rows.payloads[0])

    def run(
        self, replies: Sequence[bytes], blocks: Sequence[bytes], payloads: Sequence[bytes]
    ) -> None:
        """An answer with headers to each reply subject; mostly they all go to one client."""
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
    ) -> list[Client]:
        """A run to one reply subject; who got it."""
        to_all = self._exchange.recipients(reply)
        for to in to_all:
            to.client.deliver_rows(to, reply, None, blocks, payloads)
        return [to.client for to in to_all]

    def end(self, reply: bytes, pending: int, last_seq: int, up_to: int | None = None) -> None:
        """The end of a batch."""
        block = direct_rows.end_of_batch(pending, last_seq, up_to)
        self._exchange.send(reply, b"", block, b"")

    def nobody(self, subject: bytes, reply: bytes) -> None:
        self._exchange.no_responders(subject, reply)


def blocks_of(stream: str, rows: Rows) -> list[bytes]:
    """The header blocks of replies."""
    return direct_rows.reply_headers(
        stream, rows.subjects, rows.headers, rows.seqs, rows.timestamps
    )
