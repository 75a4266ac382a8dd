"""What delivery is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.delivery.consumers.outlet import Outlet
from penstock.host.clock import Clock
from penstock.metadata.interface import Compare, Metadata
from penstock.metadata.keys import Keys
from penstock.metadata.progress import ProgressUpdater
from penstock.model.names import TopicName
from penstock.topics.streams.stream import Stream


class DeliveryHost(NamedTuple):
    """The parts of a broker that subscriptions are made of."""

    outlet: Outlet
    metadata: Metadata
    keys: Keys
    guard: Callable[[TopicName], Compare]
    """That this broker still owns a topic; raises NotOwner."""
    progress: ProgressUpdater
    clock: Clock
    taker: Callable[[bytes], Stream | None] = lambda subject: None
    """Which stream keeps what is published to a subject."""
    settle_seconds: float = 1.0
    """So long an ack that nobody waits for may stay in memory only."""
