"""Partitions of partitioned topics as streams: `<topic>--<partition id>`, only to be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset, PartitionId
from penstock.topics.streams.stream import Stream
from penstock.topics.topics import OpenTopic
from penstock.wire.jetstream.stream_config import StreamConfig, normalised

SEPARATOR: Final = "--"


class PartitionStreams:
    """Made when they are asked for, and kept from then on."""

    def __init__(self, on_stream: Callable[[Stream], None], on_gone: Callable[[Stream], None]):
        self._on_stream, self._on_gone = on_stream, on_gone
        self._topics: dict[str, OpenTopic] = {}
        self._streams: dict[str, dict[int, Stream]] = {}

    def opened(self, opened: OpenTopic) -> None:
        name = opened.topic.name.topic
        self._topics[name] = opened
        made = self._streams[name] = {}

        def appended(run: Run | ColumnRun, first: Offset) -> None:
            if run.partition in made:
                made[run.partition].keeper.appended(run, first)

        def committed(partitions: set[int]) -> None:
            for partition in partitions & made.keys():
                made[partition].committed(partitions)

        def thrown_away() -> None:
            for stream in made.values():
                stream.thrown_away()

        opened.log.on_append, opened.log.on_commit = appended, committed
        opened.log.on_thrown_away = thrown_away

    def closed(self, opened: OpenTopic) -> None:
        name = opened.topic.name.topic
        if self._topics.get(name) is opened:
            del self._topics[name]
            for stream in self._streams.pop(name).values():
                self._on_gone(stream)

    def get(self, name: str) -> Stream | None:
        topic, separator, number = name.rpartition(SEPARATOR)
        opened = self._topics.get(topic)
        if not separator or opened is None or not _plain(number):
            return None
        partition = int(number)
        made = self._streams[topic]
        if partition not in made and partition < len(opened.partitions):
            config = StreamConfig(
                name=name, sealed=True, deny_delete=True, deny_purge=True, allow_direct=True
            )
            config = replace(normalised(config), subjects=())
            made[partition] = Stream(name, config, opened, PartitionId(partition))
            self._on_stream(made[partition])
        return made.get(partition)


def _plain(number: str) -> bool:
    return number.isdecimal() and number.isascii() and str(int(number)) == number
