"""Partitions of partitioned topics as read-only streams, named `<topic>--<partition id>`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from penstock.log import LogObserver
from penstock.model.limits import PARTITION_DIGITS_MAX
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset, PartitionId
from penstock.streams.stream import Stream
from penstock.topics import OpenTopic
from penstock.wire.jetstream.stream_config import StreamConfig, normalised

SEPARATOR: Final = "--"


class PartitionStreams:
    """The streams of partitions, each created on first use."""

    def __init__(self, on_opened: Callable[[Stream], None], on_closed: Callable[[Stream], None]):
        self._on_opened, self._on_closed = on_opened, on_closed
        self._topics: dict[str, OpenTopic] = {}
        self._streams: dict[str, dict[int, Stream]] = {}

    def opened(self, opened: OpenTopic) -> None:
        name = opened.topic.name.topic
        self._topics[name] = opened
        streams = self._streams[name] = {}
        opened.observe(_PartitionObserver(streams))

    def closed(self, opened: OpenTopic) -> None:
        name = opened.topic.name.topic
        if self._topics.get(name) is opened:
            del self._topics[name]
            for stream in self._streams.pop(name).values():
                self._on_closed(stream)

    def get(self, name: str) -> Stream | None:
        topic, separator, number = name.rpartition(SEPARATOR)
        opened = self._topics.get(topic)
        if not separator or opened is None or not _is_partition_number(number):
            return None
        partition = int(number)
        streams = self._streams[topic]
        if partition not in streams and partition < len(opened.partitions):
            config = StreamConfig(
                name=name, sealed=True, deny_delete=True, deny_purge=True, allow_direct=True
            )
            config = replace(normalised(config), subjects=())
            streams[partition] = Stream(name, config, opened, PartitionId(partition))
            self._on_opened(streams[partition])
        return streams.get(partition)


class _PartitionObserver(LogObserver):
    """Passes events of the log to the streams of the partitions concerned."""

    def __init__(self, streams: dict[int, Stream]) -> None:
        self._streams = streams

    def appended(self, run: Run | ColumnRun, first_offset: Offset) -> None:
        if run.partition in self._streams:
            self._streams[run.partition].enforcer.appended(run, first_offset)

    def committed(self, partitions: set[int]) -> None:
        for partition in partitions & self._streams.keys():
            self._streams[partition].enforcer.committed(partitions)
            self._streams[partition].committed(partitions)

    def discarded(self) -> None:
        for stream in self._streams.values():
            stream.count_again()


def _is_partition_number(number: str) -> bool:
    if not (number.isdecimal() and number.isascii()) or len(number) > PARTITION_DIGITS_MAX:
        return False
    return str(int(number)) == number
