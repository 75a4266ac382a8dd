"""The open batches of the broker: their limits, and the connections that began them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.tasks import Timer
from penstock.model.limits import RUN_BYTES_MAX
from penstock.model.times import time_text_us
from penstock.streams.republish import Send
from penstock.wire.jetstream.documents import advisory

BATCHES_MAX: Final = 1000
STREAM_BATCHES_MAX: Final = 50
BATCH_MESSAGES_MAX: Final = 1000
BATCH_BYTES_MAX: Final = RUN_BYTES_MAX // 2
"""Limit of one batch, which becomes one frame; sums of counters may take twice as much."""
STAGED_BYTES_MAX: Final = 256 << 20
"""Limit of all batches that are not committed yet, together."""
FAST_BATCHES_MAX: Final = 50_000
STREAM_FAST_BATCHES_MAX: Final = 1000
ID_BYTES_MAX: Final = 64
IDLE_SECONDS: Final = 10.0
"""A batch is abandoned after this time without a message."""


class OpenBatches:
    """Counts the open batches of all streams and knows the connection that began each."""

    def __init__(self, clock: Clock, send: Send) -> None:
        """`send` publishes a message to the current subscribers of its subject."""
        self._clock, self._send = clock, send
        self.idle_seconds = IDLE_SECONDS
        self.batches = self.fast_batches = self.size_bytes = 0
        """Number of open batches, and the memory that they use."""
        self._owned: dict[int, dict[object, Callable[[], None]]] = {}

    def own(self, owner: int, batch: object, abandon: Callable[[], None]) -> None:
        """Register a batch, which ends with the connection that began it."""
        self._owned.setdefault(owner, {})[batch] = abandon

    def disown(self, owner: int, batch: object) -> None:
        batches = self._owned.get(owner, {})
        batches.pop(batch, None)
        if not batches:
            self._owned.pop(owner, None)

    def publish_abandoned(self, stream: str, batch: bytes, reason: str) -> None:
        """Publish the advisory that a batch was abandoned."""
        subject = f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{stream}".encode()
        facts = {"stream": stream, "batch": batch.decode(errors="replace"), "reason": reason}
        time = time_text_us(self._clock.now_us())
        text = advisory("stream_batch_abandoned", unique_name()[:22], time, **facts)
        self._send(subject, b"", b"", text)

    def abandon_all_of(self, owner: int) -> None:
        """Abandon the batches of a connection that was closed."""
        for abandon in list(self._owned.pop(owner, {}).values()):
            abandon()


class IdleTimeout:
    """Abandons a batch that receives no message for too long."""

    def __init__(self, seconds: float, abandon: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._abandon = seconds, abandon
        self._last_message = self._loop.time()
        self._timer = Timer(self._check)
        self._timer.after(seconds)

    def restart(self) -> None:
        """Wait for the full time again, after a message."""
        self._last_message = self._loop.time()

    def stop(self) -> None:
        self._timer.stop()

    def _check(self) -> None:
        remaining = self._last_message + self._seconds - self._loop.time()
        if remaining > 0:
            self._timer.after(remaining)
        else:
            self._abandon()
