"""Push consumers: deliver to the subscribers of a deliver subject, without pull requests.

The ledger sees one endless pull request while the deliver subject has a subscriber. With flow
control, delivery pauses while too many bytes are in flight: the outbox sends a flow control request
and continues once the client has replied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.in_flight import Activity
from penstock.delivery.consumers.outbox import Outbox
from penstock.delivery.consumers.sending import Parcel, status_block
from penstock.host.entropy import unique_name
from penstock.host.tasks import Timer
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import PullRequest, Status
from penstock.wire import headers
from penstock.wire.jetstream.consumer_config import ConsumerConfig

ENDLESS: Final = 1 << 40
"""The number of messages of the endless request."""
WINDOW_BYTES_MAX: Final = 32 << 20
FLOW_REQUEST: Final = headers.status(100, b"FlowControl Request")


class FlowWindow:
    """The flow control window of one client: the bytes that may be in flight."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.request_subject = b""
        """The reply subject of the pending flow control request; empty if there is none."""
        self._requested_bytes = 0

    @property
    def full(self) -> bool:
        return self.bytes > self.bytes_max

    def add(self, size: int) -> bool:
        """Count sent bytes; returns whether to send a flow control request now."""
        self.bytes += size
        return not self.request_subject and self.bytes > self.bytes_max // 2

    def begin_request(self, subject: bytes) -> None:
        """Record a flow control request, which covers the bytes sent so far."""
        self.request_subject, self._requested_bytes = subject, self.bytes

    def end_request(self) -> None:
        """Release the bytes up to the request and double the window, up to its limit."""
        self.bytes -= self._requested_bytes
        self.request_subject, self._requested_bytes = b"", 0
        self.bytes_max = min(2 * self.bytes_max, WINDOW_BYTES_MAX)


class PushOutbox(Outbox):
    """Sends to the deliver subject; its endless request waits while there is a subscriber."""

    def __init__(
        self,
        host: DeliveryHost,
        stream: str,
        consumer: str,
        config: ConsumerConfig,
        ledger: ConsumerLedger,
        activity: Activity,
        request_ended: Callable[[], None],
        deliverable: Callable[[], None],
    ) -> None:
        """`deliverable` is called when messages can be sent again."""
        super().__init__(host, stream, consumer, config, ledger, activity, request_ended)
        self._deliverable = deliverable
        self._window_bytes = host.limits.flow_window_bytes
        self._request: PullRequest | None = None
        """The endless request; None while the deliver subject has no subscriber."""
        self._window: FlowWindow | None = None
        self._rate_timer: Timer | None = None
        """Ends the pause that keeps the rate limit."""
        self._cancel_interest: Callable[[], None] | None = None
        self._closed = False

    @property
    def deliver_subject(self) -> bytes:
        return self._config.deliver_subject.encode()

    @property
    def bound(self) -> bool:
        """Whether the deliver subject has a subscriber."""
        return self._outlet.has_interest(self.deliver_subject)

    def attach(self) -> None:
        """Deliver as soon as the deliver subject has a subscriber."""
        if self.bound:
            self._begin_request()
        else:
            on_interest = self._outlet.on_interest
            self._cancel_interest = on_interest(self.deliver_subject, self._begin_request)

    def detach(self) -> None:
        """End the endless request, or stop waiting for a subscriber."""
        if self._request is not None:
            self._ledger.withdraw(self._request)
            self._interest_watches.pop(self._request)()
        if self._cancel_interest is not None:
            self._cancel_interest()
        if self._rate_timer is not None:
            self._rate_timer.stop()
        self._request = self._window = self._cancel_interest = self._rate_timer = None

    def close(self) -> None:
        """End without a status: subscribers of the deliver subject made no request."""
        self._closed = True
        self.detach()

    def withdraw(self, request: PullRequest) -> None:
        super().withdraw(request)
        if request is self._request:
            self._request = self._window = None
            if not self._closed:
                self.attach()

    def send(self, request: PullRequest, parcel: Parcel) -> int:
        if self._config.deliver_group:
            # Send each message apart, so that the queue group spreads them.
            sent, count = 0, len(parcel.payloads)
            while sent < count and super().send(request, parcel.take(range(sent, sent + 1))):
                sent += 1
        else:
            sent = super().send(request, parcel)
        request.left = ENDLESS
        size = parcel.size()
        if self._window is not None and self._window.add(size):
            self._send_flow_request(self._window)
        self._pause(size)
        return sent

    def send_statuses(self, statuses: Iterable[Status]) -> None:
        window = self._window
        if window is None or not window.full:
            super().send_statuses(statuses)
            return
        for status in statuses:
            stalled = (b"Nats-Consumer-Stalled", window.request_subject)
            self._outlet.send(
                status.inbox, b"", headers.with_fields(status_block(status), [stalled]), b""
            )

    def end_flow_request(self, subject: bytes) -> None:
        """Continue after the client's reply to a flow control request."""
        if self._window is not None and self._window.request_subject == subject:
            self._window.end_request()
            if self._window.full:
                # The window is full again without a pending request: send one, or delivery stops.
                self._send_flow_request(self._window)
            self._resume()

    def _begin_request(self) -> None:
        self._cancel_interest = None
        self._request = PullRequest(
            self.deliver_subject,
            ENDLESS,
            heartbeat_ns=self._config.idle_heartbeat,
            now_ns=self._clock.monotonic_ns(),
        )
        self._window = FlowWindow(self._window_bytes) if self._config.flow_control else None
        self._ledger.waiting.add(self._request)
        self.watch(self._request)
        self._deliverable()

    def _send_flow_request(self, window: FlowWindow) -> None:
        subject = f"$JS.FC.{self._stream}.{self._consumer}.{unique_name()[:8]}".encode()
        window.begin_request(subject)
        self._outlet.send(self.deliver_subject, subject, FLOW_REQUEST, b"")

    def _pause(self, size: int) -> None:
        """Accept no messages while the window is full or the rate limit is used up."""
        if self._request is None:
            return
        if self._window is not None and self._window.full:
            self._request.left = 0
        rate = self._config.rate_limit_bps
        if rate:
            self._request.left = 0
            self._rate_timer = Timer(self._end_rate_pause)
            self._rate_timer.after(size * 8 / rate)

    def _end_rate_pause(self) -> None:
        self._rate_timer = None
        self._resume()

    def _resume(self) -> None:
        full = self._window is not None and self._window.full
        if self._request is not None and self._rate_timer is None and not full:
            self._request.left = ENDLESS
            self._deliverable()


class PushConsumer(Consumer):
    """Delivers while its deliver subject has a subscriber."""

    _outbox: PushOutbox

    @property
    def bound(self) -> bool:
        """Whether the deliver subject has a subscriber."""
        return self._outbox.bound

    def begin(self) -> None:
        self._outbox.attach()

    def update(self, config: ConsumerConfig, feed: Feed) -> None:
        moved = config.deliver_subject != self.config.deliver_subject
        if moved:
            self._outbox.detach()
        super().update(config, feed)
        if moved:
            self._outbox.attach()

    def end_flow_request(self, subject: bytes) -> None:
        """Continue after the client's reply to a flow control request."""
        self._outbox.end_flow_request(subject)

    def close(self, code: int, text: str, *, counts: bool = False) -> None:
        self._outbox.close()
        super().close(code, text, counts=counts)

    def _create_outbox(self, host: DeliveryHost) -> PushOutbox:
        return PushOutbox(
            host,
            self.stream.name,
            self.name,
            self.config,
            self.ledger,
            self.activity,
            self._request_ended,
            self._deliver_and_arm,
        )

    def _deliver_and_arm(self) -> None:
        self.deliver()
        self._arm()
