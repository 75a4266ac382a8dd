"""An outlet that records what is sent, with any number of subscribers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Sent(NamedTuple):
    """One message."""

    inbox: bytes
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class RecordingOutlet:
    """Every subject has a subscriber, which accepts `room` messages."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.rows: list[Sent] = []
        self.departures: dict[bytes, Callable[[], None]] = {}

    def has_interest(self, subject: bytes) -> bool:
        return True

    def send(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> int:
        self.rows.append(Sent(subject, subject, reply, headers, payload))
        return 1

    def send_rows(
        self,
        inbox: bytes,
        subjects: Sequence[bytes],
        replies: Sequence[bytes],
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        blocks = headers or [b""] * len(payloads)
        rows = list(zip(subjects, replies, blocks, payloads, strict=True))[: self.room]
        self.rows += [Sent(inbox, *row) for row in rows]
        return len(rows)

    async def drained(self, inbox: bytes) -> None:
        pass

    def on_no_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def on_departure(self, inbox: bytes, call: Callable[[], None]) -> Callable[[], None]:
        self.departures[inbox] = call

        def cancel() -> None:
            del self.departures[inbox]

        return cancel

    def on_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
