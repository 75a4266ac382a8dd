"""Stages: groups of messages that are appended to a stream as one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.model.run import Origin
from penstock.model.units import Offset

Replaced = tuple[Offset, list[Offset], bytes | None]
"""Messages that an append deletes: those before an offset, single ones, and their subject if they
share one.
"""


@dataclass(slots=True)
class Stage:
    """Messages that are appended together, and what their append causes."""

    first: Offset | None
    """The offset that the first message must get, because its checks hold only there; None if the
    messages may be appended anywhere.
    """
    subjects: Sequence[bytes]
    blocks: Sequence[bytes] | None
    """Header blocks, empty for messages without headers."""
    payloads: Sequence[bytes]
    ids: dict[bytes, int] = field(default_factory=dict)
    """Message ids to remember, each with the index of its message."""
    replaced: list[Replaced] = field(default_factory=list)
    """Messages that are deleted in the same group commit."""

    @property
    def origin(self) -> Origin:
        return Origin.CLIENT

    def is_current(self) -> bool:
        """Whether checks that do not depend on the offset still hold, right before the append."""
        return True

    def appended(self, first: Offset) -> None:
        """React to the append of the messages, right after it."""
