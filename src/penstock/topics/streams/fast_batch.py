"""How far one fast batch is, and when its next ack is due."""

from __future__ import annotations

from typing import Final

from penstock.topics.streams.staging import Patience
from penstock.wire.jetstream.fast_batches import FastMessage

FLOW_MAX: Final = 500
"""Messages that share an ack, of all fast batches of a stream together."""


class FastBatch:
    """What was received, stored and acknowledged of a batch."""

    def __init__(self, first: FastMessage, patience: Patience) -> None:
        self.batch_id, self.gaps, self.flow_max = first.batch, first.gaps, first.flow
        self.patience = patience
        self.flow = 1
        """An ack comes after so many messages."""
        self.received = 0
        """The last sequence that came."""
        self.stored = 0
        """The last sequence that is durable, as far as it was to be stored."""
        self.acked = 0
        """The last sequence that an ack was for."""
        self.pending = 0
        """Messages that are not durable yet."""
        self.stream_sequence = 0
        """Of the last message that is durable."""
        self.ended_by: bytes | None = None
        """The reply of what ended it; nothing more is taken."""

    def begin(self, others: int) -> None:
        """Who is alone may go as fast as it likes; others begin slowly."""
        self.flow = 1 if others else min(FLOW_MAX, self.flow_max)

    def next_ack(self, batches: int) -> bool:
        """Whether an ack is due, for `acked` then; `flow` moves towards a fair share of all."""
        steps = (self.stored - self.acked) // self.flow
        if steps < 1:
            return False
        self.acked += steps * self.flow
        fair = min(max(FLOW_MAX // batches, 1), self.flow_max)
        if self.flow < fair:
            self.flow = min(self.flow * 2, fair)
        else:
            self.flow = max(self.flow // 2, fair)
        return True
