"""Rows of a stream as a consumer sends them: under their own subjects, with an ack subject each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.delivery.consumers.outlet import Outlet
from penstock.topics.streams.rows import Rows
from penstock.wire import headers as header_blocks
from penstock.wire.jetstream.ack_subject import ack_subjects


class Parcel(NamedTuple):
    """Messages as they go out, column by column."""

    subjects: Sequence[bytes]
    replies: Sequence[bytes]
    headers: Sequence[bytes] | None
    payloads: Sequence[bytes]

    def sizes(self) -> list[int]:
        """As they count against `max_bytes`."""
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
        """Of all together."""
        parts = (self.subjects, self.replies, self.payloads, self.headers or ())
        return sum(sum(map(len, part)) for part in parts)

    def take(self, positions: Sequence[int]) -> Parcel:
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
            [self.subjects[place] for place in positions],
            [self.replies[place] for place in positions],
            None if self.headers is None else [self.headers[place] for place in positions],
            [self.payloads[place] for place in positions],
        )


class Sender:
    """Sends for one consumer."""

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
        """`counts` says how often each was delivered with this time, `consumer_seq` is the first
        one's, `pendings` what is left behind each.
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
        """How many of them somebody got, from the first on."""
        return self._outlet.send_rows(
            inbox, parcel.subjects, parcel.replies, parcel.headers, parcel.payloads
        )

    def _blocks(self, rows: Rows, pin: str) -> list[bytes]:
        added = [(b"Nats-Pin-Id", pin.encode())] if pin else []
        blocks = [b""] * rows.count if rows.headers is None else rows.headers
        return [
            header_blocks.with_fields(
                block,
                [*added, (b"Nats-Msg-Size", b"%d" % len(payload))] if self._headers_only else added,
            )
            for block, payload in zip(blocks, rows.payloads, strict=True)
        ]
