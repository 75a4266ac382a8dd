"""What several brokers share, and other tools see of it: etcd and a bucket."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from penstock.metadata import MetadataKeys
from tests.fault.bucket import Bucket, Entry, ends, entries_of
from tests.fault.tier_child import SUBSCRIPTION, Facts, topic_name, topics_of
from tests.fault.tier_process import Rows, TierProcess
from tests.servers.etcd import EtcdServer
from tests.servers.s3 import S3Server

NAMESPACE: Final = "/shared"
KEYS: Final = MetadataKeys(NAMESPACE)


class Kept:
    """All that lay in etcd at one moment."""

    def __init__(self, values: Mapping[str, bytes]) -> None:
        self._values = values

    def head(self, topic: str) -> dict[str, Any]:
        """Of the manifest."""
        head: dict[str, Any] = json.loads(self._values[KEYS.manifest(topic_name(topic))])
        return head

    def entries(self, topic: str) -> list[Entry]:
        """Of the manifest."""
        prefix = KEYS.objects(topic_name(topic))
        return entries_of(value for key, value in self._values.items() if key.startswith(prefix))

    def entries_of_epoch(self, topic: str, epoch: int) -> list[Entry]:
        """Those whose objects this owner made."""
        return [entry for entry in self.entries(topic) if entry["epoch"] == epoch]

    def position(self, topic: str) -> int:
        """Of the topic's subscription."""
        value = self._values[KEYS.progress(topic_name(topic), SUBSCRIPTION)]
        return int(json.loads(value)["offset"])


class Shared:
    """An etcd and a prefix of a bucket; a process that uses them hosts so many brokers."""

    def __init__(
        self, directory: Path, etcd: EtcdServer, server: S3Server, brokers: int = 1
    ) -> None:
        self._directory, self._etcd, self._server = directory, etcd, server
        self._brokers = brokers
        self._prefix = uuid.uuid4().hex
        self._lives = count()
        self._bucket = Bucket(server.files(), f"{server.bucket}/{self._prefix}")
        self.topics = [topic for number in range(brokers) for topic in topics_of(number)]

    def process(self, name: str, lease_seconds: int, margin_seconds: float) -> TierProcess:
        """Brokers; those of the same name again have the same disks."""
        return TierProcess(
            Facts(
                name,
                self._brokers,
                f"life-{next(self._lives)}",
                str(self._directory / name),
                self._etcd.endpoint,
                NAMESPACE,
                self._server.url,
                self._server.bucket,
                self._prefix,
                lease_seconds,
                margin_seconds,
            )
        )

    def kept(self) -> Kept:
        """What lies in etcd now."""
        return Kept(self._etcd.values(NAMESPACE))

    def objects(self) -> dict[str, int]:
        """How many the manifest of each topic has."""
        kept = self.kept()
        return {topic: len(kept.entries(topic)) for topic in self.topics}

    def uploads_went_on(self, objects: Mapping[str, int]) -> bool:
        """Whether every topic has more objects than these."""
        now = self.objects()
        return all(now[topic] > number for topic, number in objects.items())

    def rows(self, kept: Kept, topic: str, may_skip: Callable[[Entry | None, Entry], bool]) -> Rows:
        """What other tools read in the objects of the manifest, which have no gap but these."""
        entries = kept.entries(topic)
        ends(entries, may_skip)
        return {place: data.decode() for place, data in self._bucket.rows(entries).items()}
