"""One client's connection: parses its input and handles the events in order.

A long input is handled in parts, so that other clients have their turns in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from penstock.host.tasks import Timer
from penstock.model.subjects import valid_filter, valid_subject
from penstock.protocols.nats.client import Subscription
from penstock.protocols.nats.clients import Clients
from penstock.protocols.nats.greeting import connect_options
from penstock.protocols.nats.turn import PendingEvent, Remainder, handle_some, publish
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

OK: Final = b"+OK\r\n"
PONG: Final = b"PONG\r\n"
PING: Final = b"PING\r\n"


class ClientConnection(asyncio.Protocol):
    """Receives the events of one transport and handles what its client sends."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self.client = clients, clients.create_client()
        self._parser = Parser(clients.limits.payload_bytes)
        self._work_max = clients.limits.work_per_turn
        self._has_unhandled_events = self._lost = False
        self._connected = self._greeted = False
        self._authorised = not clients.credentials.required
        self._pings_out = 0
        self._ping_timer = Timer(self._ping)
        self._auth_timer = Timer(self._end_unauthorised)

    # -- events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = self.client
        client.connect(cast(asyncio.Transport, transport))
        client.queue(self._clients.greeting(client, first=True))
        if not self._clients.admit(client):
            client.fail(b"'maximum connections exceeded'")
            return
        client.write_queue()
        if self._authorised:
            self._ping_timer.after(self._clients.limits.first_ping_seconds)
        else:
            self._auth_timer.after(self._clients.limits.auth_seconds)

    def data_received(self, data: bytes) -> None:
        self._handle_all(self._parser.receive(data))

    def pause_writing(self) -> None:
        self.client.pause_writing()

    def resume_writing(self) -> None:
        self.client.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.client.disconnect()
        self._ping_timer.stop()
        self._auth_timer.stop()
        self._lost = True
        if not self._has_unhandled_events:
            self._clients.forget(self.client)

    # -- events of the client

    def _handle_all(self, events: Sequence[PendingEvent], more: bool = False) -> None:
        """Handle events, a part in each turn of the event loop; then continue to read."""
        self.client.begin_turn()
        unhandled = handle_some(self._clients.exchange, events, self._handle, self._work_max)
        self.client.flush()
        self._has_unhandled_events = bool(unhandled)
        if unhandled:
            self.client.hold()
            asyncio.get_running_loop().call_soon(self._handle_all, unhandled, True)
        elif self._lost:
            self._clients.forget(self.client)
        if more:
            self.client.resume()

    def _handle(self, event: PendingEvent) -> Remainder | None:
        """Handle an event; returns the messages of a run that are published in a later turn.

        Input that was read before the client closed the connection is handled, too.
        """
        if self.client.dismissed:
            return None
        if isinstance(event, Remainder):
            return publish(self._clients.exchange, self.client, event.run, self._work_max)
        if isinstance(event, Publishes) and self._authorised:
            return self._publish(event)
        self._handle_control(event)
        return None

    def _handle_control(self, event: Event) -> None:
        if isinstance(event, Connect):
            self._connect(event)
        elif not self._authorised:
            self.client.fail(b"'Authorization Violation'")
        elif isinstance(event, Broken):
            self.client.fail(event.error)
        elif not self.client.open:
            return
        elif isinstance(event, Beat):
            self._handle_beat(event)
        elif isinstance(event, Subscribe):
            self._subscribe(event)
        elif isinstance(event, Unsubscribe):
            self._unsubscribe(event)

    def _publish(self, run: Publishes) -> Remainder | None:
        client = self.client
        if run.headers is not None and not client.options.headers:
            client.fail(b"")
            return None
        count = len(run.payloads)
        client.in_messages += count
        client.in_bytes += sum(map(len, run.payloads)) + sum(map(len, run.headers or ()))
        if client.options.pedantic:
            invalid = count - sum(map(valid_subject, run.subjects))
            client.queue(b"-ERR 'Invalid Publish Subject'\r\n" * invalid)
        if client.options.verbose:
            client.queue(OK * count)
        return publish(self._clients.exchange, client, run, self._work_max)

    def _handle_beat(self, beat: Beat) -> None:
        if beat is Beat.PONG:
            self._pings_out = 0
            return
        self.client.queue(PONG)
        if self._connected and not self._greeted:
            self._greeted = True
            if self.client.options.protocol >= 1:
                self.client.queue(self._clients.greeting(self.client, first=False))

    def _connect(self, event: Connect) -> None:
        client = self.client
        try:
            options = connect_options(event.options, client.options)
        except ValueError:
            client.fail(b"")
            return
        if options.no_responders and not options.headers:
            client.fail(b"'no responders requires headers support'")
            return
        if not self._clients.credentials.allow(options):
            client.fail(b"'Authorization Violation'")
            return
        client.options, self._connected = options, True
        if not self._authorised:
            self._authorised = True
            self._auth_timer.stop()
            if client.open:
                self._ping_timer.after(self._clients.limits.first_ping_seconds)
        self._confirm()

    def _subscribe(self, event: Subscribe) -> None:
        client = self.client
        self._confirm()
        if event.sid in client.subscriptions:
            return
        if len(client.subscriptions) >= self._clients.limits.subscriptions:
            client.complain(b"'maximum subscriptions exceeded'")
            return
        if not valid_filter(event.subject):
            client.complain(b"'Invalid Subject'")
            return
        subscription = Subscription(client, event.sid, event.subject, event.queue)
        client.subscriptions[event.sid] = subscription
        self._clients.interest.add(subscription)

    def _unsubscribe(self, event: Unsubscribe) -> None:
        self._confirm()
        subscription = self.client.subscriptions.get(event.sid)
        if subscription is None:
            return
        if event.most is not None and event.most > subscription.delivered:
            subscription.most = event.most
        else:
            self.client.end_subscription(subscription)

    def _confirm(self) -> None:
        """Send +OK if the client asked for it."""
        if self.client.options.verbose:
            self.client.queue(OK)

    # -- timers

    def _ping(self) -> None:
        if not self.client.open:
            return
        if self._pings_out >= self._clients.limits.pings_out:
            self.client.fail(b"'Stale Connection'")
            return
        self._pings_out += 1
        self._ping_timer.after(self._clients.limits.ping_seconds)
        self.client.send(PING)

    def _end_unauthorised(self) -> None:
        """Disconnect a client that has not authenticated in time."""
        if self.client.open:
            self.client.fail(b"'Authentication Timeout'")
