"""Limits how much input of one client is handled before other clients are served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.exchange import Exchange, part
from penstock.wire.parser import Event, Publishes

EVENTS_PER_TURN: Final = 100
WORK_PER_TURN: Final = 50_000
"""The most deliveries and visited subscriptions in one turn; a single message may exceed it."""


class Remainder(NamedTuple):
    """The messages of a run that are published in a later turn."""

    run: Publishes


PendingEvent = Event | Remainder


def publish(exchange: Exchange, sender: ConnectedClient, run: Publishes) -> Remainder | None:
    """Publish as many messages as fit into a turn; returns the remaining ones, if any."""
    count = exchange.publish(sender, run, WORK_PER_TURN)
    total = len(run.payloads)
    return Remainder(part(run, count, total)) if count < total else None


def handle_some(
    exchange: Exchange,
    events: Sequence[PendingEvent],
    handle: Callable[[PendingEvent], Remainder | None],
) -> list[PendingEvent]:
    """Handle the events of one turn in order; returns the events left for later turns."""
    end = exchange.work + WORK_PER_TURN
    for index, event in enumerate(events[:EVENTS_PER_TURN], 1):
        remainder = handle(event)
        if remainder is not None:
            return [remainder, *events[index:]]
        if exchange.work >= end:
            return list(events[index:])
    return list(events[EVENTS_PER_TURN:])
