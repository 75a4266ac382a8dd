"""Withholds replies that confirm a change of messages once the broker's lease has ended.

The process may be paused between the commit of a message and the reply. The lease is therefore
checked right before the head of such a reply is written, and again before its body.
"""

from __future__ import annotations

from typing import Final

import structlog

from penstock.metadata.ownership import Ownership
from penstock.protocols.http.body_intake import EXTENSION
from penstock.protocols.http.reply import CONFIRMS, Event, Send, answer, error

LEASE_ENDED: Final = (
    "this broker's lease ended before it could reply; the request may have been carried out"
)
UNAVAILABLE: Final = 503

_events = structlog.get_logger(__name__)


class LeaseCheckedSend:
    """Sends the events of one reply, if the lease is not lost between creation and reply."""

    def __init__(self, scope: Event, send: Send, lease: Ownership) -> None:
        self._scope, self._send, self._lease = scope, send, lease
        self._leases_lost = lease.leases_lost
        self._start: Event | None = None
        self._withheld = False

    async def __call__(self, event: Event) -> None:
        start, self._start = self._start, None
        if self._withheld:
            return
        if start is not None:
            await self._confirm(start, event)
        elif CONFIRMS in event:
            self._start = event
        else:
            await self._send(event)

    async def _confirm(self, start: Event, body: Event) -> None:
        """Send a whole reply: its start, and the event with its body."""
        transport = self._scope["extensions"].get(EXTENSION, {}).get("transport")
        if transport is None or transport.is_closing():
            return
        if not self._valid():
            self._withhold()
            await answer(self._scope, self._send, error(UNAVAILABLE, LEASE_ENDED, "lease_expired"))
            return
        await self._send(start)
        if body["body"] and not self._valid():
            self._withhold()
            transport.abort()
            return
        await self._send(body)

    def _valid(self) -> bool:
        return self._lease.leases_lost == self._leases_lost and self._lease.lease_valid()

    def _withhold(self) -> None:
        self._withheld = True
        _events.warning("confirmations_withheld", path=self._scope["path"])
