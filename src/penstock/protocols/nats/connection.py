"""One client's connection: handles its input in order and writes its output once per turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import repeat
from typing import Final, cast

from penstock.host.tasks import Timer
from penstock.model.subjects import valid_filter, valid_subject
from penstock.protocols.nats.client import Subscription
from penstock.protocols.nats.clients import Clients
from penstock.protocols.nats.greeting import Options, connect_options
from penstock.protocols.nats.turn import PendingEvent, Remainder, handle_some, publish
from penstock.wire.messages import messages
from penstock.wire.parser import (
    Beat,
    Broken,
    Connect,
    Event,
    Parser,
    Publishes,
    Subscribe,
    Unsubscribe,
)

FIRST_PING_SECONDS: Final = 2.0
LINGER_SECONDS: Final = 10.0
"""How long a client may read pending output before its closing connection is aborted."""
WRITE_BYTES: Final = 1 << 20
"""Output beyond this size is written before the end of the turn."""
SHARED_BYTES: Final = 16 << 10
"""Payloads of at least this size are written without a copy for each subscription."""
OK: Final = b"+OK\r\n"
PONG: Final = b"PONG\r\n"
PING: Final = b"PING\r\n"
END: Final = b"\r\n"


class ClientConnection(asyncio.Protocol):
    """A client's connection, from accept to close."""

    def __init__(self, clients: Clients, number: int) -> None:
        self._clients, self.number = clients, number
        self.options = Options()
        self.subscriptions: dict[bytes, Subscription] = {}
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        self.address: tuple[str, int] = ("", 0)
        self.open = False
        """Whether the client can receive output."""
        self._handles_events = True
        """False once the server has closed the connection; input that was read before the client
        closed it is still handled.
        """
        self._has_unhandled_events = self._lost = False
        self._parser = Parser(clients.limits.payload_bytes)
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._output_bytes_max = self._write_bytes = min(WRITE_BYTES, clients.limits.pending_bytes)
        """With more bytes queued, output is written before the turn ends."""
        self._output_shared = False
        """Whether a payload that must not be copied is queued."""
        self._flushing = self._paused = self._needs_lease = False
        self._connected = self._greeted = self._authorised = False
        self._pings_out = 0
        self._ping_timer, self._auth_timer = Timer(self._ping), Timer(self._too_late)
        self._abort_timer: Timer | None = None
        self._holds = 0
        self._writable = asyncio.Event()
        self._writable.set()

    # -- events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True
        peer = transport.get_extra_info("peername")
        self.address = (str(peer[0]), int(peer[1])) if peer else ("", 0)
        self._authorised = not self._clients.credentials.required
        self._queue(self._clients.greeting(self, first=True))
        if not self._clients.admit(self):
            self.fail(b"'maximum connections exceeded'")
            return
        self._write_all()
        if self._authorised:
            self._ping_timer.after(FIRST_PING_SECONDS)
        else:
            self._auth_timer.after(self._clients.limits.auth_seconds)

    def data_received(self, data: bytes) -> None:
        self._handle_all(self._parser.receive(data))

    def pause_writing(self) -> None:
        self._paused = True
        self._writable.clear()
        assert self._transport is not None
        buffered = self._transport.get_write_buffer_size()
        self._output_bytes_max = self._clients.limits.pending_bytes - buffered

    def resume_writing(self) -> None:
        self._paused = False
        self._output_bytes_max = self._write_bytes
        if self.open:
            self._write_all()
        if not self._paused:
            self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.stop()
        self._leave()
        self._lost = True
        if not self._has_unhandled_events:
            self._clients.forget(self)

    # -- output

    def send(self, data: bytes) -> None:
        """Queue output, which is written at the end of the turn.

        A client whose pending output exceeds its limit is disconnected.
        """
        if self.open:
            self._queue(data)
            self._queued()

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
            self._queue(b"%b%b\r\n" % (head, payload))
        else:
            self._output += (head, payload, END)
            self._output_bytes += len(head) + len(payload) + len(END)
            self._output_shared = True
        self._queued()
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
            self._queue(messages(subjects, to.sid, replies, headers, payloads))
            self._queued()
            self._count(to, len(payloads), size + sum(map(len, headers or ())))
        else:
            none = repeat(b"")
            names = repeat(subjects) if isinstance(subjects, bytes) else subjects
            for row in zip(names, replies or none, headers or none, payloads, strict=False):
                self.deliver(to, *row)
        closed = not self.open  # Sending may have closed it.
        return 0 if closed else len(payloads)

    def require_lease(self) -> None:
        """Write what is sent next only if the lease is valid then."""
        self._needs_lease = True

    def fail(self, error: bytes) -> None:
        """Send an error and close the connection; an empty error is not sent."""
        if error:
            self._queue(b"-ERR %b\r\n" % error)
        self.close()

    def complain(self, error: bytes) -> None:
        """Send an error and keep the connection."""
        self.send(b"-ERR %b\r\n" % error)

    def close(self) -> None:
        """Write pending output and close the connection."""
        self._handles_events = False
        if self.open and self._transport is not None:
            self._write_all()
            self._leave()
            self._transport.close()
            self._abort_timer = Timer(self._transport.abort)
            self._abort_timer.after(LINGER_SECONDS)

    async def drained(self) -> None:
        """Wait until the client has read most of its pending output, or has disconnected."""
        if self._flushing:
            await asyncio.sleep(0)
        await self._writable.wait()

    def hold(self) -> None:
        """Read nothing from the client until `resume`, because its publishes wait for the disk."""
        self._holds += 1
        if self._holds == 1 and self.open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._holds -= 1
        if self._holds == 0 and self.open and self._transport is not None:
            self._transport.resume_reading()

    # -- events

    def _handle_all(self, events: Sequence[PendingEvent], more: bool = False) -> None:
        """Handle events, some in each turn of the event loop; then continue to read."""
        self._flushing = True
        rest = handle_some(self._clients.exchange, events, self._handle)
        self._flush()
        self._has_unhandled_events = bool(rest)
        if rest:
            self.hold()
            asyncio.get_running_loop().call_soon(self._handle_all, rest, True)
        elif self._lost:
            self._clients.forget(self)
        if more:
            self.resume()

    def _handle(self, event: PendingEvent) -> Remainder | None:
        """Handle an event; returns the messages of a run that are published in a later turn."""
        if not self._handles_events:
            return None
        if isinstance(event, Remainder):
            return publish(self._clients.exchange, self, event.run)
        if isinstance(event, Publishes) and self._authorised:
            return self._publishes(event)
        self._handle_control(event)
        return None

    def _handle_control(self, event: Event) -> None:
        if isinstance(event, Connect):
            self._connect(event)
        elif not self._authorised:
            self.fail(b"'Authorization Violation'")
        elif isinstance(event, Broken):
            self.fail(event.error)
        elif not self.open:
            return
        elif isinstance(event, Beat):
            self._beat(event)
        elif isinstance(event, Subscribe):
            self._subscribe(event)
        elif isinstance(event, Unsubscribe):
            self._unsubscribe(event)

    def _publishes(self, run: Publishes) -> Remainder | None:
        if run.headers is not None and not self.options.headers:
            self.fail(b"")
            return None
        count = len(run.payloads)
        self.in_messages += count
        self.in_bytes += sum(map(len, run.payloads)) + sum(map(len, run.headers or ()))
        if self.options.pedantic:
            wrong = count - sum(map(valid_subject, run.subjects))
            self._queue(b"-ERR 'Invalid Publish Subject'\r\n" * wrong)
        if self.options.verbose:
            self._queue(OK * count)
        return publish(self._clients.exchange, self, run)

    def _beat(self, beat: Beat) -> None:
        if beat is Beat.PONG:
            self._pings_out = 0
            return
        self._queue(PONG)
        if self._connected and not self._greeted:
            self._greeted = True
            if self.options.protocol >= 1:
                self._queue(self._clients.greeting(self, first=False))

    def _connect(self, event: Connect) -> None:
        try:
            options = connect_options(event.options, self.options)
        except ValueError:
            self.fail(b"")
            return
        if options.no_responders and not options.headers:
            self.fail(b"'no responders requires headers support'")
            return
        if not self._clients.credentials.allow(options):
            self.fail(b"'Authorization Violation'")
            return
        self.options, self._connected = options, True
        if not self._authorised:
            self._authorised = True
            self._auth_timer.stop()
            if self.open:
                self._ping_timer.after(FIRST_PING_SECONDS)
        self._acknowledge()

    def _subscribe(self, event: Subscribe) -> None:
        self._acknowledge()
        if event.sid in self.subscriptions:
            return
        if len(self.subscriptions) >= self._clients.limits.subscriptions:
            self.complain(b"'maximum subscriptions exceeded'")
            return
        if not valid_filter(event.subject):
            self.complain(b"'Invalid Subject'")
            return
        subscription = Subscription(self, event.sid, event.subject, event.queue)
        self.subscriptions[event.sid] = subscription
        self._clients.interest.add(subscription)

    def _unsubscribe(self, event: Unsubscribe) -> None:
        self._acknowledge()
        subscription = self.subscriptions.get(event.sid)
        if subscription is None:
            return
        if event.most is not None and event.most > subscription.delivered:
            subscription.most = event.most
        else:
            self._end(subscription)

    def _end(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.sid]
        self._clients.interest.remove(subscription)

    # -- details

    def _acknowledge(self) -> None:
        if self.options.verbose:
            self._queue(OK)

    def _count(self, to: Subscription, messages: int, size: int) -> None:
        """Count sent messages, unless sending closed the connection."""
        if not self.open:
            return
        to.delivered += messages
        self.out_messages += messages
        self.out_bytes += size
        if to.most is not None and to.delivered >= to.most:
            self._end(to)

    def _flush(self) -> None:
        self._flushing = False
        if self.open and self._output:
            self._write_out()

    def _queue(self, data: bytes) -> None:
        self._output.append(data)
        self._output_bytes += len(data)

    def _queued(self) -> None:
        """Schedule a write at the end of the turn; write now if much output is queued."""
        if self._output_bytes > self._output_bytes_max:
            self._write_out()
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _write_out(self) -> None:
        """Write queued output unless the transport is full; disconnect a slow consumer."""
        assert self._transport is not None
        pending = self._transport.get_write_buffer_size() + self._output_bytes
        if pending > self._clients.limits.pending_bytes:
            self._clients.cut_off(self)
            self._take_output()
            self.fail(b"'Slow Consumer'")
        elif not self._paused:
            self._write_all()

    def _write_all(self) -> None:
        """Write queued output; abort instead if it has confirmations and the lease is not valid."""
        assert self._transport is not None
        needs_lease, shared, output = self._needs_lease, self._output_shared, self._take_output()
        if needs_lease and not self._clients.lease_valid():
            self._clients.withhold(self)
            self._handles_events = False
            self._leave()
            self._transport.abort()
        elif shared:
            self._transport.writelines(output)
        elif output:
            self._transport.write(b"".join(output))

    def _take_output(self) -> list[bytes]:
        output, self._output, self._output_bytes = self._output, [], 0
        self._output_shared = self._needs_lease = False
        return output

    def _leave(self) -> None:
        """Stop sending to the client: end its subscriptions and timers."""
        self.open = False
        self._ping_timer.stop()
        self._auth_timer.stop()
        self._writable.set()
        subscriptions, self.subscriptions = self.subscriptions, {}
        self._clients.interest.remove_all(subscriptions.values())

    def _ping(self) -> None:
        if self._pings_out >= self._clients.limits.pings_out:
            self.fail(b"'Stale Connection'")
            return
        self._pings_out += 1
        self._ping_timer.after(self._clients.limits.ping_seconds)
        self.send(PING)

    def _too_late(self) -> None:
        self.fail(b"'Authentication Timeout'")
