"""What the batches of all streams share: how many, how large, and how long they may wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.model.limits import RUN_BYTES_MAX
from penstock.topics.streams.republish import Send
from penstock.wire.jetstream.documents import advisory
from penstock.wire.jetstream.times import time_text_us

BATCHES_MAX: Final = 1000
STREAM_BATCHES_MAX: Final = 50
BATCH_MESSAGES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = RUN_BYTES_MAX // 2
"""Of one batch, which becomes one frame; what counters store may be twice as much."""
STAGED_BYTES_MAX: Final = 256 << 20
"""Of all batches that are not committed yet."""
FAST_BATCHES_MAX: Final = 50_000
STREAM_FAST_BATCHES_MAX: Final = 1000
ID_BYTES_MAX: Final = 64
IDLE_SECONDS: Final = 10.0
"""After so long without a message a batch is given up."""


class Staging:
    """One for the broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.send: Send = lambda *message: None
        """Publishes a message to whoever subscribed to its subject."""
        self.idle_seconds = IDLE_SECONDS
        self.batches = self.fast_batches = self.size_bytes = 0
        """How many there are, and what is held for them."""
        self._owned: dict[int, dict[object, Callable[[], None]]] = {}

    def own(self, owner: int, batch: object, give_up: Callable[[], None]) -> None:
        """A batch lasts no longer than the connection that began it."""
        self._owned.setdefault(owner, {})[batch] = give_up

    def disown(self, owner: int, batch: object) -> None:
        batches = self._owned.get(owner, {})
        batches.pop(batch, None)
        if not batches:
            self._owned.pop(owner, None)

    def tell(self, stream: str, batch: bytes, reason: str) -> None:
        """A batch was given up."""
        subject = f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{stream}".encode()
        facts = {"stream": stream, "batch": batch.decode(errors="replace"), "reason": reason}
        time = time_text_us(self._clock.now_us())
        text = advisory("stream_batch_abandoned", unique_name()[:22], time, **facts)
        self.send(subject, b"", b"", text)

    def left(self, owner: int) -> None:
        """A connection has ended."""
        for give_up in list(self._owned.pop(owner, {}).values()):
            give_up()


class Patience:
    """Waits for the next message of a batch, and calls when there was none for too long."""

    def __init__(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._give_up = seconds, give_up
        self._touched = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def touch(self) -> None:
        """There was a message."""
        self._touched = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._touched + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._give_up()
