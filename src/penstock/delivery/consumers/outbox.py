"""Sends the messages and statuses of one consumer to the inboxes of its pull requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.in_flight import Activity
from penstock.delivery.consumers.sending import Parcel, Sender, status_block
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import PullRequest, Status
from penstock.streams import Rows
from penstock.wire.jetstream.consumer_config import ConsumerConfig

DRAIN_SECONDS: Final = 1.0
"""The longest wait for clients that do not read."""


class Outbox:
    """Sends to the waiting requests, and ends those whose inbox loses its subscriber."""

    def __init__(
        self,
        host: DeliveryHost,
        stream: str,
        consumer: str,
        config: ConsumerConfig,
        ledger: ConsumerLedger,
        activity: Activity,
        request_ended: Callable[[], None],
    ) -> None:
        """`request_ended` is called after a request lost its subscriber."""
        self._outlet, self._clock, self._ledger = host.outlet, host.clock, ledger
        self._stream, self._consumer, self._config = stream, consumer, config
        self._activity, self._request_ended = activity, request_ended
        self._pinned = ""
        self._interest_watches: dict[PullRequest, Callable[[], None]] = {}
        """Functions that cancel the watch on a request's inbox."""
        self._sender = self._create_sender()

    def configure(self, config: ConsumerConfig) -> None:
        """Encode messages as another configuration says."""
        self._config = config
        self._sender = self._create_sender()

    def has_subscriber(self, request: PullRequest) -> bool:
        return self._outlet.has_interest(request.inbox)

    def watch(self, request: PullRequest) -> None:
        """Withdraw the request as soon as its inbox has no subscriber."""
        call = partial(self.withdraw, request)
        self._interest_watches[request] = self._outlet.on_no_interest(request.inbox, call)

    def withdraw(self, request: PullRequest) -> None:
        """End a request whose inbox has no subscriber any more."""
        self._interest_watches.pop(request, None)
        self._ledger.withdraw(request)
        self._request_ended()

    def parcel(self, rows: Rows, counts: Sequence[int], pendings: Sequence[int]) -> Parcel:
        """Encode messages, see `Sender.parcel`."""
        ledger, pin = self._ledger, self._ledger.pin.id
        if pin and pin != self._pinned:
            self._pinned, self._activity.pinned_us = pin, self._clock.now_us()
        return self._sender.parcel(rows, counts, ledger.consumer_seq + 1, pendings, pin)

    def send(self, request: PullRequest, parcel: Parcel) -> int:
        """Send messages to a request; returns how many were received, from the first."""
        return self._sender.send(request.inbox, parcel)

    def send_statuses(self, statuses: Iterable[Status]) -> None:
        """Send statuses, and stop watching the inboxes of requests that have ended."""
        for status in statuses:
            self._outlet.send(status.inbox, b"", status_block(status), b"")
        if len(self._interest_watches) > len(self._ledger.waiting):
            waiting = self._ledger.waiting
            for request in [item for item in self._interest_watches if item not in waiting]:
                self._interest_watches.pop(request)()

    async def drained(self) -> None:
        """Wait until the clients with pending requests have read most of their output.

        The wait is bounded, so that a client that does not read holds up no others.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                for request in list(self._ledger.waiting):
                    await self._outlet.drained(request.inbox)

    def _create_sender(self) -> Sender:
        headers_only = self._config.headers_only
        return Sender(self._outlet, self._stream, self._consumer, headers_only=headers_only)
