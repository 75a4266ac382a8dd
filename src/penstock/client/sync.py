"""A client that blocks: over one connection of the standard library, one request at a time."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from penstock.client import calls
from penstock.client.exchange import BrokerUnreachable, Conversation, Reply, Request, broker_url
from penstock.client.results import Fetched, Message, Pushed
from penstock.formats import api
from penstock.model import names
from penstock.model.names import Namespace, TopicName

ANSWER_SECONDS: Final = 60.0
"""How long any answer may take, beyond what the request itself asks to wait."""

TAIL_MS: Final = 10_000

_T = TypeVar("_T")


class SyncClient:
    """Talks to one broker; may be used by several threads, whose requests take turns.

    Topics are named by id (within `namespace`), `tenant/namespace/id` or in full. Raises
    BrokerRefused with the broker's words, and BrokerUnreachable.
    """

    def __init__(
        self, url: str | None = None, namespace: str = str(names.DEFAULT_NAMESPACE)
    ) -> None:
        self.url = broker_url(url)
        self._namespace = names.namespace(namespace)
        self._turn = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._turn:
            self._drop()

    def create_topic(
        self,
        topic: str,
        fields: Sequence[str] | None = None,
        partition_column: str | None = None,
        durability: str = "fsync",
        retention: api.RetentionLimits | None = None,
    ) -> api.TopicReply:
        """A new topic: typed by `name:type` fields, or raw without them."""
        name = self._name(topic)
        body = calls.creation(name, fields, partition_column, durability, retention)
        return self.run(calls.create_topic(name, body))

    def topic(self, topic: str) -> api.TopicReply:
        return self.run(calls.get_topic(self._name(topic)))

    def topics(self) -> list[api.TopicReply]:
        return self.run(calls.list_topics(self._namespace))

    def partitions(self, topic: str) -> list[api.PartitionReply]:
        return self.run(calls.list_partitions(self._name(topic)))

    def delete_topic(self, topic: str) -> None:
        """Remove the topic and all its data."""
        self.run(calls.delete_topic(self._name(topic)))

    def push(self, topic: str, data: object, partition: object = None) -> list[Pushed]:
        """Append rows, payloads, an Arrow table or a pandas or polars frame; durable on return.

        A large table goes in several requests, in order. Without `partition` the broker divides
        rows of a partitioned topic by their partition column.
        """
        return self.run(calls.push(self._name(topic), data, partition))

    def fetch(
        self,
        topic: str,
        offset: int,
        partition: object = None,
        timeout_ms: int | None = None,
        min_messages: int | None = None,
        max_messages: int | None = None,
    ) -> Fetched:
        """Messages from `offset` on; waits up to the timeout when there are fewer than the
        minimum.
        """
        limits = calls.limits(timeout_ms, min_messages, max_messages)
        return self.run(calls.fetch(self._name(topic), offset, partition, limits))

    def tail(
        self, topic: str, offset: int | str = "latest", partition: object = None
    ) -> Iterator[Fetched]:
        """Messages as they come, without end: from an offset, `earliest` or `latest` on."""
        name = self._name(topic)
        tagged = self.run(calls.tag(name, partition))
        next_offset = self.run(calls.resolve(name, offset, tagged))
        while True:
            limits = calls.limits(TAIL_MS, None, None)
            fetched = self.run(calls.fetch(name, next_offset, tagged, limits))
            next_offset = fetched.next_offset
            if len(fetched):
                yield fetched

    def get(
        self,
        topic: str,
        offset: int | None = None,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
        start: int | None = None,
        partition: object = None,
    ) -> Message:
        """One message: at an offset, the last of a subject, or the next of a subject from `start`
        on.
        """
        query = calls.choice(offset, last_by_subject, next_by_subject, start)
        return self.run(calls.get(self._name(topic), partition, query))

    def run(self, conversation: Conversation[_T]) -> _T:
        """Carry out a conversation."""
        try:
            request = next(conversation)
            while True:
                request = conversation.send(self._exchange(request))
        except StopIteration as end:
            result: _T = end.value
            return result

    def _name(self, topic: str) -> TopicName:
        return names.topic(topic, Namespace(*self._namespace))

    def _exchange(self, request: Request) -> Reply:
        headers = {"Accept": request.accept, **dict(request.headers)}
        if request.body:
            headers["Content-Type"] = request.content_type
        with self._turn:
            if self._connection is not None and _is_closed(self._connection.sock):
                self._drop()
            try:
                return self._send(request, headers)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise BrokerUnreachable(self.url, _reason(error)) from error

    def _send(self, request: Request, headers: dict[str, str]) -> Reply:
        connection = self._connection = self._connection or self._connect()
        connection.timeout = ANSWER_SECONDS + request.wait_seconds
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        connection.request(request.method, request.path, request.body or None, headers)
        response = connection.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, response.read(), told)

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind: Any = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection: http.client.HTTPConnection = kind(parts.hostname, parts.port)
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_closed(sock: socket.socket | None) -> bool:
    """Whether the broker closed an idle connection: then there is its end to be read."""
    return sock is None or bool(select.select([sock], [], [], 0)[0])


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
