"""A consumer that sends by itself, to whoever subscribed to its deliver subject.

To its ledger it is one pull request that never ends while somebody listens. With flow control it
holds back when too much is on its way: it asks the client to answer, and goes on when it did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.sending import Parcel
from penstock.delivery.consumers.statuses import block
from penstock.host.entropy import unique_name
from penstock.ledger.requests import Request, Status
from penstock.wire import headers
from penstock.wire.jetstream.consumer_config import ConsumerConfig

ENDLESS: Final = 1 << 40
"""Messages that a listening client is ready for."""
WINDOW_BYTES_FIRST: Final = 2 << 20
WINDOW_BYTES_MAX: Final = 32 << 20
ASK: Final = headers.status(100, b"FlowControl Request")
HEARTBEAT: Final = 100


class Window:
    """How much may be on its way to a client that answers when it is asked to."""

    def __init__(self) -> None:
        self.bytes_max = WINDOW_BYTES_FIRST
        self.bytes = 0
        self.question = b""
        """The subject on which an answer is awaited; empty when none is."""
        self._asked_bytes = 0

    @property
    def full(self) -> bool:
        return self.bytes > self.bytes_max

    def sent(self, size: int) -> bool:
        """Whether the client is to be asked now."""
        self.bytes += size
        return not self.question and self.bytes > self.bytes_max // 2

    def asked(self, question: bytes) -> None:
        self.question, self._asked_bytes = question, self.bytes

    def answered(self) -> None:
        """Everything up to the question has arrived; next time more may be on its way."""
        self.bytes -= self._asked_bytes
        self.question, self._asked_bytes = b"", 0
        self.bytes_max = min(2 * self.bytes_max, WINDOW_BYTES_MAX)


class PushConsumer(Consumer):
    """Delivers while somebody listens, and waits while nobody does."""

    _standing: Request | None = None
    _cancel: Callable[[], None] | None = None
    _window: Window | None = None
    _held: asyncio.TimerHandle | None = None

    @property
    def bound(self) -> bool:
        """Whether somebody listens."""
        return self._outlet.has_interest(self.config.deliver_subject.encode())

    def begin(self) -> None:
        subject = self.config.deliver_subject.encode()
        if self._outlet.has_interest(subject):
            self._attach()
        else:
            self._cancel = self._outlet.on_interest(subject, self._attach)

    def update(self, config: ConsumerConfig, feed: Feed) -> None:
        moved = config.deliver_subject != self.config.deliver_subject
        if moved:
            self._detach()
        super().update(config, feed)
        if moved:
            self.begin()

    def withdraw(self, request: Request) -> None:
        super().withdraw(request)
        if request is self._standing:
            self._standing = self._window = None
            if not self.closed:
                self.begin()

    def send(self, request: Request, parcel: Parcel) -> int:
        if self.config.deliver_group:
            # Each message goes to a member of the group of its own.
            sent, count = 0, len(parcel.payloads)
            while sent < count and super().send(request, parcel.take(range(sent, sent + 1))):
                sent += 1
        else:
            sent = super().send(request, parcel)
        request.left = ENDLESS
        size = parcel.size()
        if self._window is not None and self._window.sent(size):
            self._ask(self._window)
        self._hold_back(size)
        return sent

    def tell(self, statuses: Iterable[Status]) -> None:
        window = self._window
        if window is None or not window.full:
            super().tell(statuses)
            return
        for status in statuses:
            stalled = (b"Nats-Consumer-Stalled", window.question)
            self._outlet.send(status.inbox, b"", headers.with_fields(block(status), [stalled]), b"")

    def answered(self, subject: bytes) -> None:
        """The client has answered a question of flow control."""
        if self._window is not None and self._window.question == subject:
            self._window.answered()
            if self._window.full:
                # So much was sent since the question that nothing more would be, and nobody asked.
                self._ask(self._window)
            self._resume()

    def close(self, code: int, text: str, *, counts: bool = False) -> None:
        # Whoever listens to the deliver subject asked for nothing and is told nothing.
        self._detach()
        super().close(code, text, counts=counts)

    def _detach(self) -> None:
        if self._standing is not None:
            self.ledger.withdraw(self._standing)
            self._watches.pop(self._standing)()
        if self._cancel is not None:
            self._cancel()
        if self._held is not None:
            self._held.cancel()
        self._standing = self._window = self._cancel = self._held = None

    def _attach(self) -> None:
        self._cancel = None
        now_ns = self._clock.monotonic_ns()
        self._standing = Request(
            self.config.deliver_subject.encode(),
            ENDLESS,
            heartbeat_ns=self.config.idle_heartbeat,
            now_ns=now_ns,
        )
        self._window = Window() if self.config.flow_control else None
        self.ledger.waiting.add(self._standing)
        self._watch(self._standing)
        self._pump.look()
        self._arm()

    def _ask(self, window: Window) -> None:
        question = f"$JS.FC.{self.stream.name}.{self.name}.{unique_name()[:8]}".encode()
        window.asked(question)
        self._outlet.send(self.config.deliver_subject.encode(), question, ASK, b"")

    def _hold_back(self, size: int) -> None:
        """Serve nothing while the window is full, or the rate has been used up."""
        if self._standing is None:
            return
        if self._window is not None and self._window.full:
            self._standing.left = 0
        rate = self.config.rate_limit_bps
        if rate:
            self._standing.left = 0
            loop = asyncio.get_running_loop()
            self._held = loop.call_later(size * 8 / rate, self._release)

    def _release(self) -> None:
        self._held = None
        self._resume()

    def _resume(self) -> None:
        full = self._window is not None and self._window.full
        if self._standing is not None and self._held is None and not full:
            self._standing.left = ENDLESS
            self._pump.look()
