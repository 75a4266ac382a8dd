"""What clients give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa


class Pushed(NamedTuple):
    """Offsets that rows of one partition got, both inclusive."""

    start_offset: int
    end_offset: int
    partition: dict[str, Any] | None = None
    """The partition's tagged value, where the broker divided the rows."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages of one partition as rows of a table, perhaps none.

    Columns: `partition`, `offset`, `timestamp`, then `subject`, `headers`, `payload`, or those of a
    typed topic.
    """

    topic: str
    start_offset: int
    end_offset: int
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def next_offset(self) -> int:
        """Where the next fetch goes on."""
        return self.end_offset + 1 if len(self) else self.start_offset


class Message(NamedTuple):
    """One message, or one row of a typed topic."""

    offset: int
    fields: dict[str, Any]
    """What the broker tells of it, by name."""
