"""Sends the messages of a consumer: each under its own subject, with an ack subject as reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.delivery.consumers.host import Outlet
from penstock.ledger.requests import Status
from penstock.streams import Rows
from penstock.wire import headers as header_blocks
from penstock.wire.jetstream.ack_subject import ack_subjects


def status_block(status: Status) -> bytes:
    """The header block of a status."""
    fields = ((name.encode(), b"%d" % value) for name, value in status.fields)
    return header_blocks.status(status.code, status.text.encode(), *fields)


class InboxDeliveries:
    """Records which inbox received which messages of one consumer, for redelivery on disconnect."""

    def __init__(self, outlet: Outlet, abandon: Callable[[list[int]], None]) -> None:
        """`abandon` receives the messages that a client has not settled when it disconnects."""
        self._outlet, self._abandon = outlet, abandon
        self._inboxes: dict[int, bytes] = {}
        self._seqs: dict[bytes, set[int]] = {}
        self._cancels: dict[bytes, Callable[[], None]] = {}

    def assign(self, inbox: bytes, seqs: Iterable[int]) -> None:
        """Record messages that are about to be sent to an inbox with a subscriber."""
        for seq in seqs:
            if self._inboxes.get(seq) != inbox:
                self.remove([seq])
                self._inboxes[seq] = inbox
                self._seqs.setdefault(inbox, set()).add(seq)
        if inbox in self._seqs and inbox not in self._cancels:
            cancel = self._outlet.on_departure(inbox, partial(self._departed, inbox))
            self._cancels[inbox] = cancel

    def remove(self, seqs: Iterable[int]) -> None:
        """Remove messages that are settled or exhausted."""
        for seq in seqs:
            inbox = self._inboxes.pop(seq, None)
            if inbox is not None:
                self._seqs[inbox].discard(seq)
                if not self._seqs[inbox]:
                    del self._seqs[inbox]
                    self._cancels.pop(inbox)()

    def _departed(self, inbox: bytes) -> None:
        seqs = sorted(self._seqs.pop(inbox, ()))
        self._cancels.pop(inbox, None)
        for seq in seqs:
            del self._inboxes[seq]
        self._abandon(seqs)


class Parcel(NamedTuple):
    """Messages to send, column by column."""

    subjects: Sequence[bytes]
    replies: Sequence[bytes]
    headers: Sequence[bytes] | None
    payloads: Sequence[bytes]

    def sizes(self) -> list[int]:
        """The size of each message, as it counts against `max_bytes`."""
        sizes = [
            len(subject) + len(reply) + len(payload)
            for subject, reply, payload in zip(
                self.subjects, self.replies, self.payloads, strict=True
            )
        ]
        if self.headers is None:
            return sizes
        return [size + len(block) for size, block in zip(sizes, self.headers, strict=True)]

    def size(self) -> int:
        """The size of all messages together."""
        parts = (self.subjects, self.replies, self.payloads, self.headers or ())
        return sum(sum(map(len, part)) for part in parts)

    def take(self, positions: Sequence[int]) -> Parcel:
        """The messages at these positions."""
        if isinstance(positions, range) and positions.step == 1:
            start, stop = positions.start, positions.stop
            if start == 0 and stop == len(self.payloads):
                return self
            headers = None if self.headers is None else self.headers[start:stop]
            return Parcel(
                self.subjects[start:stop],
                self.replies[start:stop],
                headers,
                self.payloads[start:stop],
            )
        return Parcel(
            [self.subjects[at] for at in positions],
            [self.replies[at] for at in positions],
            None if self.headers is None else [self.headers[at] for at in positions],
            [self.payloads[at] for at in positions],
        )


class Sender:
    """Encodes and sends the messages of one consumer."""

    def __init__(self, outlet: Outlet, stream: str, consumer: str, *, headers_only: bool) -> None:
        self._outlet, self._stream, self._consumer = outlet, stream, consumer
        self._headers_only = headers_only

    def parcel(
        self,
        rows: Rows,
        counts: Sequence[int],
        consumer_seq: int,
        pendings: Sequence[int],
        pin: str = "",
    ) -> Parcel:
        """The messages to send for some rows.

        `counts` is the number of deliveries of each message, this one included, `consumer_seq` the
        consumer sequence of the first, and `pendings` the number of matches that follow each.
        """
        replies = ack_subjects(
            self._stream,
            self._consumer,
            counts,
            rows.seqs,
            range(consumer_seq, consumer_seq + rows.count),
            rows.timestamps,
            pendings,
        )
        headers, payloads = rows.headers, rows.payloads
        if self._headers_only or pin:
            headers = self._blocks(rows, pin)
        if self._headers_only:
            payloads = [b""] * rows.count
        return Parcel(rows.subjects, replies, headers, payloads)

    def send(self, inbox: bytes, parcel: Parcel) -> int:
        """Send to the subscriber of `inbox`; returns how many messages were received."""
        return self._outlet.send_rows(
            inbox, parcel.subjects, parcel.replies, parcel.headers, parcel.payloads
        )

    def _blocks(self, rows: Rows, pin: str) -> list[bytes]:
        """The header blocks of messages, with the pin and the size of an omitted payload."""
        added = [(b"Nats-Pin-Id", pin.encode())] if pin else []
        blocks = [b""] * rows.count if rows.headers is None else rows.headers
        return [
            header_blocks.with_fields(
                block,
                [*added, (b"Nats-Msg-Size", b"%d" % len(payload))] if self._headers_only else added,
            )
            for block, payload in zip(blocks, rows.payloads, strict=True)
        ]
