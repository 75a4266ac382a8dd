"""How long acks take, of a share of the messages, where a consumer is asked to tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """One message that was acked."""

    consumer_seq: int
    stream_seq: int
    ack_time_ns: int
    deliveries: int


class Samples:
    """Follows messages from their last delivery to their ack."""

    def __init__(self, percent: int) -> None:
        self._percent = percent
        self._owed = 0
        self._delivered: dict[int, tuple[int, int, int]] = {}

    def delivered(self, seqs: Sequence[int], consumer_seq: int, now_ns: int) -> None:
        """These went out, the first of them with this consumer sequence."""
        for place, seq in enumerate(seqs):
            count = self._delivered.get(seq, (0, 0, 0))[2]
            self._delivered[seq] = (consumer_seq + place, now_ns, count + 1)

    def acked(self, seqs: Iterable[int], now_ns: int) -> list[Sample]:
        """Of these, the ones to be told of."""
        found = []
        for seq in seqs:
            known = self._delivered.pop(seq, None)
            self._owed += self._percent
            if known is not None and self._owed >= 100:
                self._owed -= 100
                found.append(Sample(known[0], seq, now_ns - known[1], known[2]))
        return found


def samples_of(frequency: str) -> Samples | None:
    """What `sample_freq` asks for: `50` or `50%`."""
    percent = int(frequency.removesuffix("%") or 0)
    return Samples(min(percent, 100)) if percent > 0 else None
