"""Records of consumers in the metadata store, written before a consumer is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import unquote

import msgspec
import structlog

from penstock.delivery.consumers.host import DeliveryHost
from penstock.metadata import DeleteKeys, MetadataEntry, Put
from penstock.metadata.ownership import NotOwner
from penstock.model.errors import FormatError
from penstock.model.names import TopicName
from penstock.wire.jetstream import consumer_config
from penstock.wire.jetstream.consumer_config import ConsumerConfig

VERSION: Final = 1

_events = structlog.get_logger(__name__)


class ConsumerRecord(msgspec.Struct, frozen=True):
    """The metadata record of a consumer; its settlements are in the log."""

    name: str
    config: msgspec.Raw
    """As JSON, see wire/jetstream/consumer_config.py."""
    created_us: int
    start: int
    """The first offset it may deliver."""
    picked_stop: int = 0
    """Before this offset only the last message of each subject is delivered."""
    version: int = VERSION


class ConsumerRecords:
    """Reads and writes the consumer records of one topic."""

    def __init__(self, host: DeliveryHost, topic: TopicName, scope: str = "") -> None:
        """`scope` is a prefix of every name that distinguishes the streams of one topic."""
        self._host, self._topic, self._scope = host, topic, scope

    async def create(
        self, name: str, config: ConsumerConfig, created_us: int, start: int, picked_stop: int
    ) -> None:
        """Record a new consumer, and delete the progress of an earlier one of this name."""
        delete_progress = DeleteKeys(self._host.keys.progress(self._topic, self._scope + name))
        await self._change(delete_progress, self._put(name, config, created_us, start, picked_stop))

    async def put(
        self, name: str, config: ConsumerConfig, created_us: int, start: int, picked_stop: int
    ) -> None:
        """Write a record, durable on return; raises NotOwner, MetadataUnavailable."""
        await self._change(self._put(name, config, created_us, start, picked_stop))

    async def remove(self, name: str) -> None:
        await self._change(DeleteKeys(self._key(name)))

    async def all(self) -> list[tuple[ConsumerRecord, ConsumerConfig]]:
        """Read all records; a damaged one is logged and skipped. Raises MetadataUnavailable."""
        return [record async for entry in self._entries() for record in self._read(entry)]

    async def partitions(self) -> set[int]:
        """The partitions of a partitioned topic that have consumers; raises MetadataUnavailable."""
        scopes = [
            unquote(entry.key.split("/")[-2]).partition("/") async for entry in self._entries()
        ]
        return {int(number) for number, slash, _ in scopes if slash and number.isdecimal()}

    async def _entries(self) -> AsyncIterator[MetadataEntry]:
        prefix, last, more = self._host.keys.subscriptions(self._topic), "", True
        while more:
            page = await self._host.metadata.range(prefix, last)
            for entry in page.entries:
                last = entry.key
                if entry.key.endswith("/consumer"):
                    yield entry
            more = page.more

    def _read(self, entry: MetadataEntry) -> list[tuple[ConsumerRecord, ConsumerConfig]]:
        """The record of an entry as a list of one; empty if it is damaged or of another scope."""
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

    async def _change(self, *changes: Put | DeleteKeys) -> None:
        guard = self._host.guard(self._topic)
        if not (await self._host.metadata.transaction([guard], changes)).succeeded:
            raise NotOwner(self._topic)
