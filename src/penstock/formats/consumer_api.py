"""The JSON of consumers over HTTP: how far they are."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ConsumerReply(Struct):
    """A consumer of a topic, or of one of its partitions."""

    name: str
    partition_id: int
    kind: Literal["pull", "push"]
    next_offset: int
    """All offsets of the partition below it are committed."""
    delivered_offset: int
    """Nothing from here on was delivered."""
    settled_offset: int
    """Nothing below it will be delivered again."""
    pending: int
    """Messages that it wants and that were never delivered."""
    ack_pending: int
    """Delivered and not settled."""
    deliveries: int
    """So many were made, those of the same message again counted too."""
    redelivered: int
    """Of the messages that are not settled, those that were delivered more than once."""
    given_up: int
    """Delivered as often as allowed, and settled by nobody."""
    waiting: int
    """Pulls that wait."""
    paused: bool


class ConsumerList(Struct):
    """A page of consumers, in order of partition and name."""

    consumers: list[ConsumerReply]
    next_page_token: str = ""
