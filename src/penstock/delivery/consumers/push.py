"""A push consumer: sends to the subscribers of its deliver subject without requests.

Its ledger sees one endless pull request while the deliver subject has a subscriber. With flow
control it pauses while too many bytes are in flight: it sends a flow control request and continues
once the client has replied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.sending import Parcel, block
from penstock.host.entropy import unique_name
from penstock.host.tasks import Timer
from penstock.ledger.requests import PullRequest, Status
from penstock.wire import headers
from penstock.wire.jetstream.consumer_config import ConsumerConfig

ENDLESS: Final = 1 << 40
"""The number of messages of the endless request."""
WINDOW_BYTES_FIRST: Final = 2 << 20
WINDOW_BYTES_MAX: Final = 32 << 20
ASK: Final = headers.status(100, b"FlowControl Request")
HEARTBEAT: Final = 100


class FlowWindow:
    """The flow control window of one client: the bytes that may be in flight."""

    def __init__(self) -> None:
        self.bytes_max = WINDOW_BYTES_FIRST
        self.bytes = 0
        self.question = b""
        """The subject of the pending flow control request; empty if there is none."""
        self._asked_bytes = 0

    @property
    def full(self) -> bool:
        return self.bytes > self.bytes_max

    def sent(self, size: int) -> bool:
        """Count sent bytes; returns whether to send a flow control request now."""
        self.bytes += size
        return not self.question and self.bytes > self.bytes_max // 2

    def asked(self, question: bytes) -> None:
        self.question, self._asked_bytes = question, self.bytes

    def answered(self) -> None:
        """Release the bytes up to the request and double the window, up to its limit."""
        self.bytes -= self._asked_bytes
        self.question, self._asked_bytes = b"", 0
        self.bytes_max = min(2 * self.bytes_max, WINDOW_BYTES_MAX)


class PushConsumer(Consumer):
    """Delivers while its deliver subject has a subscriber."""

    _standing: PullRequest | None = None
    _cancel: Callable[[], None] | None = None
    _window: FlowWindow | None = None
    _held: Timer | None = None

    @property
    def bound(self) -> bool:
        """Whether the deliver subject has a subscriber."""
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

    def withdraw(self, request: PullRequest) -> None:
        super().withdraw(request)
        if request is self._standing:
            self._standing = self._window = None
            if not self.closed:
                self.begin()

    def send(self, request: PullRequest, parcel: Parcel) -> int:
        if self.config.deliver_group:
            # Send each message apart, so that the queue group spreads them.
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
        """Continue after the client's reply to a flow control request."""
        if self._window is not None and self._window.question == subject:
            self._window.answered()
            if self._window.full:
                # The window is full again without a pending request: send one, or delivery stops.
                self._ask(self._window)
            self._resume()

    def close(self, code: int, text: str, *, counts: bool = False) -> None:
        # Subscribers of the deliver subject made no request, so they receive no status.
        self._detach()
        super().close(code, text, counts=counts)

    def _detach(self) -> None:
        if self._standing is not None:
            self.ledger.withdraw(self._standing)
            self._watches.pop(self._standing)()
        if self._cancel is not None:
            self._cancel()
        if self._held is not None:
            self._held.stop()
        self._standing = self._window = self._cancel = self._held = None

    def _attach(self) -> None:
        self._cancel = None
        now_ns = self._clock.monotonic_ns()
        self._standing = PullRequest(
            self.config.deliver_subject.encode(),
            ENDLESS,
            heartbeat_ns=self.config.idle_heartbeat,
            now_ns=now_ns,
        )
        self._window = FlowWindow() if self.config.flow_control else None
        self.ledger.waiting.add(self._standing)
        self._watch(self._standing)
        self._pump.look()
        self._arm()

    def _ask(self, window: FlowWindow) -> None:
        question = f"$JS.FC.{self.stream.name}.{self.name}.{unique_name()[:8]}".encode()
        window.asked(question)
        self._outlet.send(self.config.deliver_subject.encode(), question, ASK, b"")

    def _hold_back(self, size: int) -> None:
        """Stop delivery while the window is full or the rate limit is used up."""
        if self._standing is None:
            return
        if self._window is not None and self._window.full:
            self._standing.left = 0
        rate = self.config.rate_limit_bps
        if rate:
            self._standing.left = 0
            self._held = Timer(self._release)
            self._held.after(size * 8 / rate)

    def _release(self) -> None:
        self._held = None
        self._resume()

    def _resume(self) -> None:
        full = self._window is not None and self._window.full
        if self._standing is not None and self._held is None and not full:
            self._standing.left = ENDLESS
            self._pump.look()
