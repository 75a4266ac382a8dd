"""Limits how much input of one client is handled before other clients are served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.exchange import Exchange, part
from penstock.wire.parser import Event, Publishes

EVENTS_PER_TURN: Final = 100


class Remainder(NamedTuple):
    """The messages of a run that are published in a later turn."""

    run: Publishes


PendingEvent = Event | Remainder


def publish(
    exchange: Exchange, sender: ConnectedClient, run: Publishes, work_max: int
) -> Remainder | None:
    """Publish as many messages as fit into a turn; returns the remaining ones, if any."""
    count = exchange.publish(sender, run, work_max)
    total = len(run.payloads)
    return Remainder(part(run, count, total)) if count < total else None


def handle_some(
    exchange: Exchange,
    events: Sequence[PendingEvent],
    handle: Callable[[PendingEvent], Remainder | None],
    work_max: int,
) -> list[PendingEvent]:
    """Handle the events of one turn in order; returns the events left for later turns."""
    end = exchange.work + work_max
    for index, event in enumerate(events[:EVENTS_PER_TURN], 1):
        remainder = handle(event)
        if remainder is not None:
            return [remainder, *events[index:]]
        if exchange.work >= end:
            return list(events[index:])
    return list(events[EVENTS_PER_TURN:])
