"""How far the jobs of channels are, for a broker that takes a topic over without its disk.

The truth is in the log of the topic. Where that is lost, every message from a consumer's floor on
is delivered again, and nothing before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from penstock.metadata.interface import Compare, Metadata, Put
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.ownership.ownership import NotOwner
from penstock.model.errors import FormatError
from penstock.model.names import TopicName


class Floors(msgspec.Struct, frozen=True):
    """The value of a topic's key: by the number of each consumer, the offset before which all its
    jobs are done.
    """

    floors: dict[int, int]


class JobFloors:
    """Reads and writes floors; only a topic's owner may write, as `guard` tells."""

    def __init__(
        self, metadata: Metadata, keys: MetadataKeys, guard: Callable[[TopicName], Compare]
    ) -> None:
        self._metadata, self._keys, self._guard = metadata, keys, guard

    async def load(self, topic: TopicName) -> dict[int, int]:
        """Raises FormatError."""
        entry = await self._metadata.get(self._keys.job_floors(topic))
        if entry is None:
            return {}
        try:
            return msgspec.json.decode(entry.value, type=Floors).floors
        except msgspec.DecodeError as error:
            raise FormatError(f"the record {entry.key} is damaged: {error}") from error

    async def save(self, topic: TopicName, floors: Mapping[int, int]) -> None:
        """Raises NotOwner."""
        put = Put(self._keys.job_floors(topic), msgspec.json.encode(Floors(dict(floors))))
        if not (await self._metadata.transaction([self._guard(topic)], [put])).succeeded:
            raise NotOwner(topic)
