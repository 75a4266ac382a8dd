"""What the HTTP door serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.delivery.consumers.deliveries import Deliveries
from penstock.doors.http.body import Bodies
from penstock.formats.bodies import ObjectRef
from penstock.metadata.admin import Admin
from penstock.metadata.offsets import OffsetRegistry
from penstock.tiers.tier import TopicTier
from penstock.topics.fetcher import Fetcher
from penstock.topics.plans import Plans
from penstock.topics.pusher import Pusher
from penstock.topics.source import Source
from penstock.topics.topics import Topics

Compact: TypeAlias = Callable[[TopicTier, Sequence[str], ObjectRef], Awaitable[None]]
Sweep: TypeAlias = Callable[[TopicTier], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts of a broker, or of a node that only fetches, that requests reach."""

    admin: Admin
    registry: OffsetRegistry
    source: Source
    fetcher: Fetcher
    bodies: Bodies
    topics: Topics | None = None
    """None on a node that owns none: there, messages are not found by subject."""
    plans: Plans | None = None
    """None there, too: the manifest is its owner's."""
    compact: Compact | None = None
    """Lets an object count in the place of others; None there, too."""
    sweep: Sweep | None = None
    """Removes objects that nobody can make count any more; None there, too."""
    pusher: Pusher | None = None
    """None on a node that only fetches: there is no push."""
    deliveries: Deliveries | None = None
    """None there, too: consumers are where the topics are."""
