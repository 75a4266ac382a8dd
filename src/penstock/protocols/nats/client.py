"""Connected clients: their subscriptions, and the queue of output to each of them.

The output of one turn of the event loop is written together at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import structlog

from penstock.host.tasks import Timer
from penstock.protocols.nats.greeting import Options
from penstock.wire.messages import messages

WRITE_BYTES: Final = 1 << 20
"""Output beyond this size is written before the end of the turn."""
SHARED_BYTES: Final = 16 << 10
"""Payloads of at least this size are written without a copy for each subscription."""
END: Final = b"\r\n"

_events = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription of one client, identified by the sid that the client chose."""

    client: ConnectedClient
    sid: bytes
    subject: bytes
    queue: bytes
    delivered: int = 0
    most: int | None = None
    """The number of deliveries after which the subscription ends; None means no limit."""


class OutputGate:
    """The rules for output to all clients of a server."""

    def __init__(self, pending_bytes_max: int, linger_seconds: float) -> None:
        """A client with more than `pending_bytes_max` of unread output is disconnected.

        A closing connection is aborted after `linger_seconds` if the client does not read.
        """
        self.pending_bytes_max, self.linger_seconds = pending_bytes_max, linger_seconds
        self.slow_consumers = 0
        """The number of clients that were disconnected for unread output."""
        self._lease_valid: Callable[[], bool] | None = None

    def require_lease(self, lease_valid: Callable[[], bool]) -> None:
        """Write confirmations only while `lease_valid` returns True."""
        self._lease_valid = lease_valid

    def lease_valid(self) -> bool:
        """Whether confirmations may be written now."""
        return self._lease_valid is None or self._lease_valid()

    def record_slow_consumer(self, client: ConnectedClient) -> None:
        """Count and log a client that is disconnected for unread output."""
        self.slow_consumers += 1
        _events.warning("nats_slow_consumer", client=client.number, name=client.options.name)

    def record_withheld(self, client: ConnectedClient) -> None:
        """Log that the lease ended before a client's confirmations were written."""
        _events.warning("confirmations_withheld", client=client.number, name=client.options.name)


class ConnectedClient:
    """One client, from accept to close: sends to it, and holds back its input.

    `ClientConnection` passes it the events of the transport.
    """

    def __init__(
        self,
        number: int,
        gate: OutputGate,
        unsubscribe: Callable[[Subscription], None],
        unsubscribe_all: Callable[[Collection[Subscription]], None],
    ) -> None:
        """`unsubscribe` and `unsubscribe_all` receive the subscriptions that end."""
        self.number, self._gate = number, gate
        self._unsubscribe, self._unsubscribe_all = unsubscribe, unsubscribe_all
        self.options = Options()
        self.address: tuple[str, int] = ("", 0)
        self.subscriptions: dict[bytes, Subscription] = {}
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        self.open = False
        """Whether the client can receive output."""
        self.dismissed = False
        """Whether the server has closed the connection, so that no more input is handled."""
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._output_bytes_max = self._write_bytes = min(WRITE_BYTES, gate.pending_bytes_max)
        """With more bytes queued, output is written before the turn ends."""
        self._output_shared = False
        """Whether a payload that must not be copied is queued."""
        self._flush_due = self._paused = self._needs_lease = False
        self._abort_timer: Timer | None = None
        self._holds = 0
        self._writable = asyncio.Event()
        self._writable.set()

    # -- the connection

    def connect(self, transport: asyncio.Transport) -> None:
        """Begin to send over a new connection."""
        self._transport, self.open = transport, True
        peer = transport.get_extra_info("peername")
        self.address = (str(peer[0]), int(peer[1])) if peer else ("", 0)

    def disconnect(self) -> None:
        """Stop sending, because the connection is lost."""
        if self._abort_timer is not None:
            self._abort_timer.stop()
        self._leave()

    def fail(self, error: bytes) -> None:
        """Send an error and close the connection; an empty error is not sent."""
        if error:
            self.queue(b"-ERR %b\r\n" % error)
        self.close()

    def close(self) -> None:
        """Write pending output and close the connection."""
        self.dismissed = True
        if self.open and self._transport is not None:
            self.write_queue()
            self._leave()
            self._transport.close()
            self._abort_timer = Timer(self._transport.abort)
            self._abort_timer.after(self._gate.linger_seconds)

    def hold(self) -> None:
        """Read nothing from the client until `resume`, because its publishes wait for the disk."""
        self._holds += 1
        if self._holds == 1 and self.open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read from the client again, once `resume` was called as often as `hold`."""
        self._holds -= 1
        if self._holds == 0 and self.open and self._transport is not None:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Queue output while the transport is full."""
        self._paused = True
        self._writable.clear()
        assert self._transport is not None
        buffered = self._transport.get_write_buffer_size()
        self._output_bytes_max = self._gate.pending_bytes_max - buffered

    def resume_writing(self) -> None:
        """Write output again, because the client has read most of it."""
        self._paused = False
        self._output_bytes_max = self._write_bytes
        if self.open:
            self.write_queue()
        if not self._paused:
            self._writable.set()

    async def drained(self) -> None:
        """Wait until the client has read most of its pending output, or has disconnected."""
        if self._flush_due:
            await asyncio.sleep(0)
        await self._writable.wait()

    # -- output

    def send(self, data: bytes) -> None:
        """Send protocol text, unless the connection is closed.

        A client whose pending output exceeds its limit is disconnected.
        """
        if self.open:
            self.queue(data)
            self._schedule_flush()

    def complain(self, error: bytes) -> None:
        """Send an error and keep the connection."""
        self.send(b"-ERR %b\r\n" % error)

    def deliver(
        self, to: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """Send one message to a subscription, unless the connection is closed."""
        if not self.open:
            return
        start = b"%b %b %b" % (subject, to.sid, reply + b" " if reply else b"")
        if headers and self.options.headers:
            sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
            head = b"HMSG %b%b\r\n%b" % (start, sizes, headers)
        else:
            head = b"MSG %b%d\r\n" % (start, len(payload))
        if len(payload) < SHARED_BYTES:
            self.queue(b"%b%b\r\n" % (head, payload))
        else:
            self._output += (head, payload, END)
            self._output_bytes += len(head) + len(payload) + len(END)
            self._output_shared = True
        self._schedule_flush()
        self._count(to, 1, len(payload) + len(headers))

    def deliver_rows(
        self,
        to: Subscription,
        subjects: bytes | Sequence[bytes],
        replies: Sequence[bytes] | None,
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """Send a run to a subscription; returns how many messages it accepted."""
        if not self.open:
            return 0
        if not self.options.headers:
            headers = None
        room = len(payloads) if to.most is None else to.most - to.delivered
        if room < len(payloads):
            subjects = subjects if isinstance(subjects, bytes) else subjects[:room]
            replies = None if replies is None else replies[:room]
            headers = None if headers is None else headers[:room]
            payloads = payloads[:room]
        size = sum(map(len, payloads))
        if size < SHARED_BYTES * len(payloads):
            self.queue(messages(subjects, to.sid, replies, headers, payloads))
            self._schedule_flush()
            self._count(to, len(payloads), size + sum(map(len, headers or ())))
        else:
            none = repeat(b"")
            names = repeat(subjects) if isinstance(subjects, bytes) else subjects
            for row in zip(names, replies or none, headers or none, payloads, strict=False):
                self.deliver(to, *row)
        closed = not self.open  # Sending may have closed it.
        return 0 if closed else len(payloads)

    def require_lease(self) -> None:
        """Close the connection instead of writing what is sent next, unless the lease is valid
        when it is written.
        """
        self._needs_lease = True

    def end_subscription(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.sid]
        self._unsubscribe(subscription)

    # -- the queue

    def queue(self, data: bytes) -> None:
        """Queue output for the next flush."""
        self._output.append(data)
        self._output_bytes += len(data)

    def begin_turn(self) -> None:
        """Collect the output of this turn until `flush`, instead of scheduling a flush."""
        self._flush_due = True

    def flush(self) -> None:
        """Write queued output at the end of a turn."""
        self._flush_due = False
        if self.open and self._output:
            self._write_or_cut_off()

    def write_queue(self) -> None:
        """Write queued output; abort instead if it has confirmations and the lease is not valid."""
        assert self._transport is not None
        needs_lease, shared, output = self._needs_lease, self._output_shared, self._take_output()
        if needs_lease and not self._gate.lease_valid():
            self._gate.record_withheld(self)
            self.dismissed = True
            self._leave()
            self._transport.abort()
        elif shared:
            self._transport.writelines(output)
        elif output:
            self._transport.write(b"".join(output))

    def _schedule_flush(self) -> None:
        """Schedule a write at the end of the turn; write now if much output is queued."""
        if self._output_bytes > self._output_bytes_max:
            self._write_or_cut_off()
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _write_or_cut_off(self) -> None:
        """Write queued output unless the transport is full; disconnect a slow consumer."""
        assert self._transport is not None
        pending = self._transport.get_write_buffer_size() + self._output_bytes
        if pending > self._gate.pending_bytes_max:
            self._gate.record_slow_consumer(self)
            self._take_output()
            self.fail(b"'Slow Consumer'")
        elif not self._paused:
            self.write_queue()

    def _take_output(self) -> list[bytes]:
        output, self._output, self._output_bytes = self._output, [], 0
        self._output_shared = self._needs_lease = False
        return output

    def _count(self, to: Subscription, count: int, size: int) -> None:
        """Count sent messages, unless sending closed the connection."""
        if not self.open:
            return
        to.delivered += count
        self.out_messages += count
        self.out_bytes += size
        if to.most is not None and to.delivered >= to.most:
            self.end_subscription(to)

    def _leave(self) -> None:
        """Stop sending to the client, and end its subscriptions."""
        self.open = False
        self._writable.set()
        subscriptions, self.subscriptions = self.subscriptions, {}
        self._unsubscribe_all(subscriptions.values())
