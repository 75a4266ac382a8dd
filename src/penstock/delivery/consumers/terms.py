"""A consumer's configuration as the rules of its ledger.

What NATS has no field for is asked for by metadata, so that every client can say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.ledger.rules import AckPolicy, PriorityPolicy, Rules
from penstock.model.subjects import Filter
from penstock.wire.jetstream.consumer_config import ConsumerConfig

DELAYED_FREE: Final = "penstock.delayed_naks_free"
"""`true`: messages refused with a delay do not count against max_ack_pending until they are due."""
NAK_BACKOFF: Final = "penstock.nak_backoff"
"""`true`: a refusal without a delay waits as `backoff` says."""

DEAD_LETTER_SUBJECT: Final = "penstock.dead_letter_subject"
"""Where messages are stored that were delivered too often."""
REDELIVER_ON_DISCONNECT: Final = "penstock.redeliver_on_disconnect"
"""`true`: what a client had when it went comes again at once."""


def rules_of(config: ConsumerConfig) -> Rules:
    """The rules that a normalised configuration means."""
    return Rules(
        ack_policy=AckPolicy(config.ack_policy),
        ack_wait_ns=config.ack_wait,
        backoff_ns=config.backoff,
        deliveries_max=max(config.max_deliver, 0),
        pending_max=max(config.max_ack_pending, 0),
        waiting_max=0 if config.push else config.max_waiting,
        priority_policy=PriorityPolicy(config.priority_policy or "none"),
        pin_ns=config.priority_timeout,
        delayed_free=config.metadata.get(DELAYED_FREE) == "true",
        refusal_backoff=config.metadata.get(NAK_BACKOFF) == "true",
    )


def filters_of(config: ConsumerConfig) -> Sequence[Filter]:
    """What it wants; nothing means everything."""
    return tuple(Filter.parse(subject.encode()) for subject in config.filters)


def cover(filters: Sequence[str], subjects: Sequence[str]) -> bool:
    """Whether filters leave out nothing of a stream with these subjects."""
    return bool(subjects) and all(
        any(_covers(wanted.split("."), subject.split(".")) for wanted in filters)
        for subject in subjects
    )


def _covers(wanted: Sequence[str], subject: Sequence[str]) -> bool:
    """Whether the first filter leaves out nothing that the second one matches."""
    for position, part in enumerate(wanted):
        if part == ">":
            return len(subject) > position
        if position >= len(subject) or subject[position] == ">":
            return False
        if part not in ("*", subject[position]):
            return False
    return len(wanted) == len(subject)
