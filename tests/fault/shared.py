"""What several brokers share, and other tools see of it: etcd and a bucket."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from penstock.metadata.keys import Keys
from tests.fault.bucket import Bucket, Entry, ends, entries_of
from tests.fault.tier_child import Facts, topic_of
from tests.fault.tier_process import Rows, TierProcess
from tests.servers.etcd import EtcdServer
from tests.servers.s3 import S3Server

NAMESPACE: Final = "/shared"
KEYS: Final = Keys(NAMESPACE)
TOPICS: Final = ("fsync", "cloud")
"""Each promises what its name says."""


class Shared:
    """An etcd and a prefix of a bucket."""

    def __init__(self, directory: Path, etcd: EtcdServer, server: S3Server) -> None:
        self._directory, self._etcd, self._server = directory, etcd, server
        self._prefix = uuid.uuid4().hex
        self._lives = count()

    def broker(self, name: str, lease_seconds: int, margin_seconds: float) -> TierProcess:
        """A broker; of the same name again it has the same disk."""
        return TierProcess(
            Facts(
                name,
                f"life-{next(self._lives)}",
                str(self._directory / name),
                self._etcd.endpoint,
                NAMESPACE,
                self._server.url,
                self._server.bucket,
                self._prefix,
                list(TOPICS),
                lease_seconds,
                margin_seconds,
            )
        )

    def head(self, topic: str) -> dict[str, Any]:
        """Of the manifest, as it lies in etcd."""
        key = KEYS.manifest(topic_of(topic))
        head: dict[str, Any] = json.loads(self._etcd.values(key)[key])
        return head

    def entries(self, topic: str) -> list[Entry]:
        """Of the manifest, as they lie in etcd."""
        return entries_of(self._etcd.values(KEYS.objects(topic_of(topic))).values())

    def uploads_went_on(self, objects: Mapping[str, int]) -> bool:
        """Whether every topic has more objects than these."""
        return all(len(self.entries(topic)) > number for topic, number in objects.items())

    def rows(self, topic: str, may_skip: Callable[[Entry | None, Entry], bool]) -> Rows:
        """What other tools read in the objects of the manifest, which have no gap but these."""
        entries = self.entries(topic)
        ends(entries, may_skip)
        bucket = Bucket(self._server.files(), f"{self._server.bucket}/{self._prefix}")
        return {place: data.decode() for place, data in bucket.rows(entries).items()}
