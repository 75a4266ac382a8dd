"""Objects as the uploader makes them."""

from __future__ import annotations

from typing import NamedTuple

from penstock.host.shared_memory import SharedFile, mapped_view, shared_memory
from penstock.log import Collected
from penstock.model.names import TopicName
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import ObjectEntry
from penstock.tiers.upload.object_builder import ObjectBuilder


class Built(NamedTuple):
    """An object and its entry."""

    entry: ObjectEntry
    data: bytes

    @classmethod
    def of(cls, entry: ObjectEntry, memory: SharedFile) -> Built:
        return cls(entry, bytes(mapped_view(memory)))


def build(
    topic: TopicName,
    first_frame: int,
    collected: Collected,
    deletions: Deletions,
    *facts: int | str,
) -> Built | None:
    """An object of collected messages; `facts` are the arguments of `ObjectBuilder.finish`."""
    with shared_memory() as memory:
        building = ObjectBuilder(topic, first_frame, memory)
        building.add(collected, deletions)
        entry = building.finish(*facts)  # type: ignore[arg-type]
        return None if entry is None else Built.of(entry, memory)
