"""Records of consumers in the metadata store, written before a consumer is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import unquote

import msgspec
import structlog

from penstock.delivery.consumers.host import DeliveryHost
from penstock.metadata.interface import Delete, Entry, Put
from penstock.metadata.ownership import NotOwner
from penstock.model.errors import FormatError
from penstock.model.names import TopicName
from penstock.wire.jetstream import consumer_config
from penstock.wire.jetstream.consumer_config import ConsumerConfig

VERSION: Final = 1

_events = structlog.get_logger(__name__)


class ConsumerRecord(msgspec.Struct, frozen=True):
    """What is kept of a consumer beside its settlements."""

    name: str
    config: msgspec.Raw
    """As JSON, see wire/jetstream/consumer_config.py."""
    created_us: int
    start: int
    """The first offset it may deliver."""
    picked_stop: int = 0
    """Before this offset only the last message of each subject is delivered."""
    version: int = VERSION


class Records:
    """The consumers of one topic."""

    def __init__(self, host: DeliveryHost, topic: TopicName, scope: str = "") -> None:
        """`scope` stands before every name, to tell the streams of one topic apart."""
        self._host, self._topic, self._scope = host, topic, scope

    async def make(
        self, name: str, config: ConsumerConfig, created_us: int, start: int, picked_stop: int
    ) -> None:
        """Record a new one: the position of an earlier one of this name is not its own."""
        place = Delete(self._host.keys.progress(self._topic, self._scope + name))
        await self._change(place, self._put(name, config, created_us, start, picked_stop))

    async def put(
        self, name: str, config: ConsumerConfig, created_us: int, start: int, picked_stop: int
    ) -> None:
        """Durable on return; raises NotOwner, MetadataUnavailable."""
        await self._change(self._put(name, config, created_us, start, picked_stop))

    async def remove(self, name: str) -> None:
        await self._change(Delete(self._key(name)))

    async def all(self) -> list[tuple[ConsumerRecord, ConsumerConfig]]:
        """Raises MetadataUnavailable; a record that cannot be read is reported and left out."""
        return [found async for entry in self._entries() for found in self._read(entry)]

    async def partitions(self) -> set[int]:
        """Those that have consumers, of a topic that is partitioned; raises MetadataUnavailable."""
        scopes = [
            unquote(entry.key.split("/")[-2]).partition("/") async for entry in self._entries()
        ]
        return {int(number) for number, slash, _ in scopes if slash and number.isdecimal()}

    async def _entries(self) -> AsyncIterator[Entry]:
        prefix, last, more = self._host.keys.subscriptions(self._topic), "", True
        while more:
            page = await self._host.metadata.range(prefix, last)
            for entry in page.entries:
                last = entry.key
                if entry.key.endswith("/consumer"):
                    yield entry
            more = page.more

    def _read(self, entry: Entry) -> list[tuple[ConsumerRecord, ConsumerConfig]]:
        """The record, if it can be read and is one of ours."""
        try:
            record = msgspec.json.decode(entry.value, type=ConsumerRecord)
            config = consumer_config.decode(bytes(record.config))
        except (msgspec.MsgspecError, FormatError) as error:
            _events.error("consumer_record_damaged", key=entry.key, reason=str(error))
            return []
        return [(record, config)] if entry.key == self._key(record.name) else []

    def _key(self, name: str) -> str:
        return self._host.keys.consumer(self._topic, self._scope + name)

    def _put(
        self, name: str, config: ConsumerConfig, created_us: int, start: int, picked_stop: int
    ) -> Put:
        text = msgspec.Raw(consumer_config.encode(config))
        record = ConsumerRecord(name, text, created_us, start, picked_stop)
        return Put(self._key(name), msgspec.json.encode(record))

    async def _change(self, *changes: Put | Delete) -> None:
        guard = self._host.guard(self._topic)
        if not (await self._host.metadata.transaction([guard], changes)).succeeded:
            raise NotOwner(self._topic)
