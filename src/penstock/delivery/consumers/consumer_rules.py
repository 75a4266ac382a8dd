"""Interprets a consumer's configuration: the rules of its ledger and the limits of pull requests.

Options without a field in NATS are read from the consumer's metadata, which every client can set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.ledger.requests import PullRequest, Status
from penstock.ledger.rules import AckPolicy, PriorityPolicy, Rules
from penstock.model.subjects import Filter
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.overlap import subset
from penstock.wire.jetstream.requests import NextRequest, parse_next
from penstock.wire.jetstream.times import duration_text

DELAYED_FREE: Final = "penstock.delayed_naks_free"
"""`true`: messages naked with a delay do not count against max_ack_pending until they are due."""
NAK_BACKOFF: Final = "penstock.nak_backoff"
"""`true`: a nak without a delay is redelivered after the delays of `backoff`."""

DEAD_LETTER_SUBJECT: Final = "penstock.dead_letter_subject"
"""The subject to which messages are copied that exceed max_deliver."""
REDELIVER_ON_DISCONNECT: Final = "penstock.redeliver_on_disconnect"
"""`true`: the unsettled messages of a client are redelivered as soon as it disconnects."""


def rules_of(config: ConsumerConfig) -> Rules:
    """The ledger rules of a normalised configuration."""
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
        nak_backoff=config.metadata.get(NAK_BACKOFF) == "true",
    )


def filters_of(config: ConsumerConfig) -> Sequence[Filter]:
    """The subject filters; none match every subject."""
    return tuple(Filter.parse(subject.encode()) for subject in config.filters)


def cover(filters: Sequence[str], subjects: Sequence[str]) -> bool:
    """Whether the filters match everything that a stream with these subjects accepts."""
    return bool(subjects) and all(
        any(subset(subject, filter_) for filter_ in filters) for subject in subjects
    )


PRIORITY_MAX: Final = 9


def parse_pull_request(
    config: ConsumerConfig, body: bytes, inbox: bytes, now_ns: int, wait_for_first: bool = False
) -> PullRequest | Status:
    """Parse and check the body of a pull request; returns a status if it is refused.

    With `wait_for_first`, a `no_wait` request that has an expiry waits for its first message.
    """
    if config.push:
        return Status(inbox, 409, "Consumer is push based")
    try:
        fields = parse_next(body)
    except ValueError as error:
        return Status(inbox, 400, f"Bad Request - {error}")
    return pull_request(config, fields, inbox, now_ns, wait_for_first)


def pull_request(
    config: ConsumerConfig,
    fields: NextRequest,
    inbox: bytes,
    now_ns: int,
    wait_for_first: bool = False,
) -> PullRequest | Status:
    """Check a parsed pull request; returns a status if it is refused."""
    if fields.idle_heartbeat * 2 > fields.expires and fields.idle_heartbeat:
        return Status(inbox, 400, "Bad Request - heartbeat value too large")
    exceeded = _exceeded(config, fields)
    if exceeded:
        return Status(inbox, 409, f"Exceeded {exceeded}")
    mismatch = _mismatch(config, fields)
    if mismatch:
        return Status(inbox, 400, f"Bad Request - {mismatch}")
    request = PullRequest(
        inbox,
        fields.batch,
        expires_ns=now_ns + fields.expires if fields.expires else None,
        no_wait=fields.no_wait,
        waits_for_first=wait_for_first and fields.no_wait and fields.expires > 0,
        bytes_max=fields.max_bytes,
        heartbeat_ns=fields.idle_heartbeat,
        group=fields.group,
        min_pending=fields.min_pending,
        min_ack_pending=fields.min_ack_pending,
        priority=fields.priority,
        pin=fields.id,
        now_ns=now_ns,
    )
    if fields.expires < 0:
        return request.end_status(408, "Request Timeout")
    return request


def _exceeded(config: ConsumerConfig, fields: NextRequest) -> str:
    """The limit of the consumer that the request exceeds; empty if none."""
    if 0 < config.max_batch < fields.batch:
        return f"MaxRequestBatch of {config.max_batch}"
    if 0 < config.max_expires < fields.expires:
        return f"MaxRequestExpires of {duration_text(config.max_expires)}"
    if 0 < config.max_bytes < fields.max_bytes:
        return f"MaxRequestMaxBytes of {config.max_bytes}"
    return ""


def _mismatch(config: ConsumerConfig, fields: NextRequest) -> str:
    """The reason why the request does not fit the consumer's priority policy; empty if it does."""
    policy = config.priority_policy
    if config.priority_groups and not fields.group:
        return "Priority Group missing"
    if config.priority_groups and fields.group not in config.priority_groups:
        return "Invalid Priority Group"
    if policy != "overflow" and (fields.min_pending or fields.min_ack_pending):
        return "Not a Overflow Priority consumer"
    if policy != "pinned_client" and fields.id:
        return "Not a Pinned Client Priority consumer"
    if not 0 <= fields.priority <= PRIORITY_MAX:
        return "Priority must be between 0 and 9"
    return ""
