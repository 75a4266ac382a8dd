"""The rules of a consumer's ledger, derived from its configuration."""

from __future__ import annotations

from enum import Enum

import msgspec


class AckPolicy(Enum):
    """Which ack settles a message."""

    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"


class PriorityPolicy(Enum):
    """Which waiting requests are served."""

    NONE = "none"
    OVERFLOW = "overflow"
    PINNED = "pinned_client"
    PRIORITIZED = "prioritized"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one consumer; 0 means no limit."""

    ack_policy: AckPolicy = AckPolicy.EXPLICIT
    ack_wait_ns: int = 30_000_000_000
    backoff_ns: tuple[int, ...] = ()
    """Ack waits after the first, second... delivery; the last one repeats."""
    deliveries_max: int = 0
    pending_max: int = 0
    waiting_max: int = 512
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    pin_ns: int = 0
    """How long a pinned client remains pinned without sending a request."""
    delayed_free: bool = False
    """Messages naked with a delay do not count against `pending_max` until they are due."""
    nak_backoff: bool = False
    """A nak without a delay uses the delays of `backoff_ns`."""

    def wait_ns(self, deliveries: int) -> int:
        """How long a message may stay unsettled after this number of deliveries."""
        if not self.backoff_ns:
            return self.ack_wait_ns
        return self.backoff_ns[min(deliveries, len(self.backoff_ns)) - 1]
