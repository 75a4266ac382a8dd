"""What a client asks for when it pulls: checked against the consumer's limits, as a request."""

from __future__ import annotations

from typing import Final

from penstock.ledger.requests import Request, Status
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.requests import NextRequest, parse_next
from penstock.wire.jetstream.times import duration_text

PRIORITY_MAX: Final = 9


def asked(config: ConsumerConfig, body: bytes, inbox: bytes, now_ns: int) -> Request | Status:
    """The request that a body means, or why it is refused."""
    if config.push:
        return Status(inbox, 409, "Consumer is push based")
    try:
        wanted = parse_next(body)
    except ValueError as error:
        return Status(inbox, 400, f"Bad Request - {error}")
    return checked(config, wanted, inbox, now_ns)


def checked(
    config: ConsumerConfig, wanted: NextRequest, inbox: bytes, now_ns: int
) -> Request | Status:
    """The same for what was read already."""
    if wanted.idle_heartbeat * 2 > wanted.expires and wanted.idle_heartbeat:
        return Status(inbox, 400, "Bad Request - heartbeat value too large")
    exceeded = _exceeded(config, wanted)
    if exceeded:
        return Status(inbox, 409, f"Exceeded {exceeded}")
    misplaced = _misplaced(config, wanted)
    if misplaced:
        return Status(inbox, 400, f"Bad Request - {misplaced}")
    request = Request(
        inbox,
        wanted.batch,
        expires_ns=now_ns + wanted.expires if wanted.expires else None,
        no_wait=wanted.no_wait,
        bytes_max=wanted.max_bytes,
        heartbeat_ns=wanted.idle_heartbeat,
        group=wanted.group,
        min_pending=wanted.min_pending,
        min_ack_pending=wanted.min_ack_pending,
        priority=wanted.priority,
        pin=wanted.id,
        now_ns=now_ns,
    )
    if wanted.expires < 0:
        return request.ended(408, "Request Timeout")
    return request


def _exceeded(config: ConsumerConfig, wanted: NextRequest) -> str:
    """Which limit of the consumer it is above."""
    if 0 < config.max_batch < wanted.batch:
        return f"MaxRequestBatch of {config.max_batch}"
    if 0 < config.max_expires < wanted.expires:
        return f"MaxRequestExpires of {duration_text(config.max_expires)}"
    if 0 < config.max_bytes < wanted.max_bytes:
        return f"MaxRequestMaxBytes of {config.max_bytes}"
    return ""


def _misplaced(config: ConsumerConfig, wanted: NextRequest) -> str:
    """What it says that does not go with the consumer's priorities."""
    policy = config.priority_policy
    if config.priority_groups and not wanted.group:
        return "Priority Group missing"
    if config.priority_groups and wanted.group not in config.priority_groups:
        return "Invalid Priority Group"
    if policy != "overflow" and (wanted.min_pending or wanted.min_ack_pending):
        return "Not a Overflow Priority consumer"
    if policy != "pinned_client" and wanted.id:
        return "Not a Pinned Client Priority consumer"
    if not 0 <= wanted.priority <= PRIORITY_MAX:
        return "Priority must be between 0 and 9"
    return ""
