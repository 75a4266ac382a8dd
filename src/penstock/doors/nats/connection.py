"""One client's connection: its events handled in order, its output written once a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from penstock.doors.nats.client import Subscription
from penstock.doors.nats.clients import Clients
from penstock.doors.nats.greeting import Options, connect_options
from penstock.model.errors import NameInvalid
from penstock.model.subjects import Filter, valid_subject
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
"""For so long a client may read what was written before it is closed."""
OK: Final = b"+OK\r\n"
PONG: Final = b"PONG\r\n"
PING: Final = b"PING\r\n"


class Connection(asyncio.Protocol):
    """A client, from its first byte to its last."""

    def __init__(self, clients: Clients, number: int) -> None:
        self._clients, self.number = clients, number
        self.options = Options()
        self.subscriptions: dict[bytes, Subscription] = {}
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        self.address: tuple[str, int] = ("", 0)
        self.open = False
        self._parser = Parser(clients.limits.payload_bytes)
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes] = []
        self._flushing = False
        self._connected = self._greeted = self._authorised = False
        self._pings_out = 0
        self._timer: asyncio.TimerHandle | None = None
        self._holds = 0
        self._writable = asyncio.Event()
        self._writable.set()

    # -- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True
        peer = transport.get_extra_info("peername")
        self.address = (str(peer[0]), int(peer[1])) if peer else ("", 0)
        self._authorised = not self._clients.credentials.required
        self._output.append(self._clients.greeting(self, first=True))
        if not self._clients.admit(self):
            self.fail(b"'maximum connections exceeded'")
            return
        self._write_out()
        loop = asyncio.get_running_loop()
        if self._authorised:
            self._timer = loop.call_later(FIRST_PING_SECONDS, self._ping)
        else:
            self._timer = loop.call_later(self._clients.limits.auth_seconds, self._too_late)

    def data_received(self, data: bytes) -> None:
        self._flushing = True
        for event in self._parser.receive(data):
            if not self.open:
                return
            self._handle(event)
        self._flush()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        self._leave()
        self._clients.forget(self)

    # -- output

    def send(self, data: bytes) -> None:
        """Write soon, together with whatever else there is by then."""
        self._output.append(data)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def deliver(
        self, to: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """One message for a subscription."""
        start = b"%b %b %b" % (subject, to.sid, reply + b" " if reply else b"")
        if headers and self.options.headers:
            sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
            self.send(b"HMSG %b%b\r\n%b%b\r\n" % (start, sizes, headers, payload))
        else:
            self.send(b"MSG %b%d\r\n%b\r\n" % (start, len(payload), payload))
        self._count(to, 1, len(payload) + len(headers))

    def deliver_rows(
        self,
        to: Subscription,
        subjects: bytes | Sequence[bytes],
        replies: Sequence[bytes] | None,
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """A run for a subscription; how many it took."""
        if not self.options.headers:
            headers = None
        room = len(payloads) if to.most is None else to.most - to.delivered
        if room < len(payloads):
            subjects = subjects if isinstance(subjects, bytes) else subjects[:room]
            replies = None if replies is None else replies[:room]
            headers = None if headers is None else headers[:room]
            payloads = payloads[:room]
        self.send(messages(subjects, to.sid, replies, headers, payloads))
        self._count(to, len(payloads), sum(map(len, payloads)) + sum(map(len, headers or ())))
        return len(payloads)

    def fail(self, error: bytes) -> None:
        """Tell the client why and close; an empty error is not told."""
        if error:
            self._output.append(b"-ERR %b\r\n" % error)
        self.close()

    def complain(self, error: bytes) -> None:
        """Tell the client what was wrong and go on."""
        self.send(b"-ERR %b\r\n" % error)

    def close(self) -> None:
        """Write what there is and close."""
        if self.open and self._transport is not None:
            self._write_out()
            self._leave()
            self._transport.close()
            if self._timer is not None:
                self._timer.cancel()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LINGER_SECONDS, self._transport.abort)

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent, or is gone."""
        if self._flushing:
            await asyncio.sleep(0)
        await self._writable.wait()

    def hold(self) -> None:
        """Read nothing until `resume`: what was sent already waits for the disk."""
        self._holds += 1
        if self._holds == 1 and self.open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._holds -= 1
        if self._holds == 0 and self.open and self._transport is not None:
            self._transport.resume_reading()

    # -- events

    def _handle(self, event: Event) -> None:
        if isinstance(event, Connect):
            self._connect(event)
        elif not self._authorised:
            self.fail(b"'Authorization Violation'")
        elif isinstance(event, Publishes):
            self._publishes(event)
        elif isinstance(event, Beat):
            self._beat(event)
        elif isinstance(event, Broken):
            self.fail(event.error)
        elif isinstance(event, Subscribe):
            self._subscribe(event)
        else:
            self._unsubscribe(event)

    def _publishes(self, run: Publishes) -> None:
        if run.headers is not None and not self.options.headers:
            self.fail(b"")
            return
        count = len(run.payloads)
        self.in_messages += count
        self.in_bytes += sum(map(len, run.payloads)) + sum(map(len, run.headers or ()))
        if self.options.pedantic:
            wrong = count - sum(map(valid_subject, run.subjects))
            self._output.append(b"-ERR 'Invalid Publish Subject'\r\n" * wrong)
        if self.options.verbose:
            self._output.append(OK * count)
        self._clients.exchange.publish(self, run)

    def _beat(self, beat: Beat) -> None:
        if beat is Beat.PONG:
            self._pings_out = 0
            return
        self._output.append(PONG)
        if self._connected and not self._greeted:
            self._greeted = True
            if self.options.protocol >= 1:
                self._output.append(self._clients.greeting(self, first=False))

    def _connect(self, event: Connect) -> None:
        try:
            options = connect_options(event.options, self.options)
        except msgspec.MsgspecError:
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
            assert self._timer is not None
            self._timer.cancel()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FIRST_PING_SECONDS, self._ping)
        self._acknowledge()

    def _subscribe(self, event: Subscribe) -> None:
        self._acknowledge()
        if event.sid in self.subscriptions:
            return
        if len(self.subscriptions) >= self._clients.limits.subscriptions:
            self.complain(b"'maximum subscriptions exceeded'")
            return
        try:
            Filter.parse(event.subject)
        except NameInvalid:
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
            self._output.append(OK)

    def _count(self, to: Subscription, messages: int, size: int) -> None:
        to.delivered += messages
        self.out_messages += messages
        self.out_bytes += size
        if to.most is not None and to.delivered >= to.most:
            self._end(to)

    def _flush(self) -> None:
        self._flushing = False
        if self.open and self._output:
            self._write_out()

    def _write_out(self) -> None:
        assert self._transport is not None
        data, self._output = b"".join(self._output), []
        if self._transport.get_write_buffer_size() + len(data) > self._clients.limits.pending_bytes:
            self._clients.cut_off(self)
            self._leave()
            self._transport.abort()
        else:
            self._transport.write(data)

    def _leave(self) -> None:
        """Get nothing more: from here on nobody may count on this client."""
        self.open = False
        for subscription in list(self.subscriptions.values()):
            self._end(subscription)

    def _ping(self) -> None:
        if self._pings_out >= self._clients.limits.pings_out:
            self.fail(b"'Stale Connection'")
            return
        self._pings_out += 1
        self.send(PING)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._clients.limits.ping_seconds, self._ping)

    def _too_late(self) -> None:
        self.fail(b"'Authentication Timeout'")
