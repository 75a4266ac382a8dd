"""The parts of a broker that handlers of HTTP requests use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.delivery.consumers import Deliveries
from penstock.formats.bodies import ObjectRef
from penstock.metadata.catalog import Admin, OffsetRegistry
from penstock.protocols.http.body import Bodies
from penstock.tiers import TopicTier
from penstock.topics import Fetcher, Plans, Pusher, Source, Topics

Compact: TypeAlias = Callable[[TopicTier, Sequence[str], ObjectRef], Awaitable[None]]
Sweep: TypeAlias = Callable[[TopicTier], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts of a broker, or of a fetch node, where the optional parts are None."""

    admin: Admin
    registry: OffsetRegistry
    source: Source
    fetcher: Fetcher
    bodies: Bodies
    topics: Topics | None = None
    """Needed to find messages by subject."""
    plans: Plans | None = None
    """Plans the objects and hot tail of topics that this broker owns."""
    compact: Compact | None = None
    """Replaces objects in the manifest by a compacted object."""
    sweep: Sweep | None = None
    """Removes staged objects that can no longer be linked."""
    pusher: Pusher | None = None
    """Stores pushed rows."""
    deliveries: Deliveries | None = None
    """The NATS consumers of the topics that this broker owns."""
