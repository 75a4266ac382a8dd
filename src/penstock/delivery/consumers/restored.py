"""What consumers had settled before a restart, read back from the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.ledger.settlement import KIND, Kept, decode
from penstock.log.log import Log


@dataclass(slots=True)
class Restored:
    """What the settlements of one consumer add up to."""

    frame: int
    """Of its last whole settlement: what is before it is not needed."""
    kept: Kept = field(default_factory=Kept)


async def read_settled(log: Log, scope: str) -> dict[tuple[str, int], Restored]:
    """By a consumer's name, without its scope, and the time it was made.

    Raises FormatError, VersionUnknown, OSError.
    """
    found: dict[tuple[str, int], Restored] = {}
    for frame, version, entries in await log.settlements.read(KIND):
        for change in decode(version, entries):
            known = (change.consumer.removeprefix(scope), change.created_us)
            if change.whole:
                found[known] = Restored(frame)
            if known in found:
                found[known].kept.apply(change)
    return found
