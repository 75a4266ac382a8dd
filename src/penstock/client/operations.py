"""The operations that both Python clients offer, each declared once as a conversation."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    overload,
)

from penstock.client import admin, messages
from penstock.client.exchange import BrokerReply, BrokerRequest, Conversation, broker_url
from penstock.client.messages import FetchedMessage, FetchedTable, PushedRange
from penstock.formats import api
from penstock.model import names
from penstock.model.names import Namespace, TopicName
from penstock.model.retention import TopicRetention

if TYPE_CHECKING:
    from penstock.model.partition_value import PartitionValue

TAIL_MS: Final = 10_000

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ClientOperation(Generic[_P, _T]):
    """A method of both clients: a blocking client returns the result, an async one an awaitable."""

    def __init__(
        self, conversation: Callable[Concatenate[Operations, _P], Conversation[_T]]
    ) -> None:
        self._conversation = conversation
        functools.update_wrapper(cast(Any, self), conversation)

    @overload
    def __get__(
        self, client: BlockingOperations, owner: type | None = None
    ) -> Callable[_P, _T]: ...

    @overload
    def __get__(
        self, client: AsyncOperations, owner: type | None = None
    ) -> Callable[_P, Awaitable[_T]]: ...

    @overload
    def __get__(self, client: None, owner: type | None = None) -> ClientOperation[_P, _T]: ...

    def __get__(self, client: Any, owner: type | None = None) -> Any:
        if client is None:
            return self

        @functools.wraps(self._conversation)
        def perform(*args: _P.args, **options: _P.kwargs) -> Any:
            return client.run(self._conversation(client, *args, **options))

        return perform


class TailPosition(NamedTuple):
    """Where a tail continues."""

    topic: TopicName
    partition: PartitionValue | None
    next_offset: int


class Operations:
    """Operations on one broker; topics named by their id alone are in `namespace`.

    Topics may also be named `tenant/namespace/id` or in full.
    """

    def __init__(
        self, url: str | None = None, namespace: str = str(names.DEFAULT_NAMESPACE)
    ) -> None:
        self.url = broker_url(url)
        self._namespace = names.namespace(namespace)

    @ClientOperation
    def create_topic(
        self,
        topic: str,
        fields: Sequence[str] | None = None,
        partition_column: str | None = None,
        durability: str = "fsync",
        retention: TopicRetention | None = None,
    ) -> Conversation[api.TopicReply]:
        """Create a topic: typed by `name:type` fields, or raw without them."""
        name = self._name(topic)
        body = admin.topic_creation(name, fields, partition_column, durability, retention)
        return (yield from admin.create_topic(name, body))

    @ClientOperation
    def topic(self, topic: str) -> Conversation[api.TopicReply]:
        """The configuration of a topic."""
        return (yield from admin.get_topic(self._name(topic)))

    @ClientOperation
    def topics(self) -> Conversation[list[api.TopicReply]]:
        """The topics of the namespace."""
        return (yield from admin.list_topics(self._namespace))

    @ClientOperation
    def partitions(self, topic: str) -> Conversation[list[api.PartitionReply]]:
        """The partitions of a topic and their offsets."""
        return (yield from admin.list_partitions(self._name(topic)))

    @ClientOperation
    def delete_topic(self, topic: str) -> Conversation[None]:
        """Delete a topic and all its data."""
        yield from admin.delete_topic(self._name(topic))

    @ClientOperation
    def push(
        self, topic: str, data: object, partition: object = None
    ) -> Conversation[list[PushedRange]]:
        """Append rows, payloads, an Arrow table or a pandas or polars frame; durable on return.

        A large table is sent in several requests, in order. Without `partition` the broker assigns
        rows of a partitioned topic by their partition column.
        """
        return (yield from messages.push_rows(self._name(topic), data, partition))

    @ClientOperation
    def fetch(
        self,
        topic: str,
        offset: int,
        partition: object = None,
        timeout_ms: int | None = None,
        min_messages: int | None = None,
        max_messages: int | None = None,
    ) -> Conversation[FetchedTable]:
        """Messages from `offset` on.

        The broker waits up to the timeout while there are fewer messages than the minimum;
        cancelling the call ends the wait.
        """
        limits = messages.fetch_limits(timeout_ms, min_messages, max_messages)
        return (yield from messages.fetch_table(self._name(topic), offset, partition, limits))

    @ClientOperation
    def get(
        self,
        topic: str,
        offset: int | None = None,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
        start: int | None = None,
        partition: object = None,
    ) -> Conversation[FetchedMessage]:
        """One message: at an offset, the last of a subject, or the next of a subject from `start`
        on.
        """
        query = messages.message_query(offset, last_by_subject, next_by_subject, start)
        return (yield from messages.get_message(self._name(topic), partition, query))

    def _tail_position(
        self, topic: str, offset: int | str, partition: object
    ) -> Conversation[TailPosition]:
        name = self._name(topic)
        tagged = yield from messages.tag_partition(name, partition)
        return TailPosition(
            name, tagged, (yield from messages.resolve_offset(name, offset, tagged))
        )

    def _tail_step(self, position: TailPosition) -> Conversation[tuple[FetchedTable, TailPosition]]:
        """Fetch what comes next, possibly nothing, and the position behind it."""
        limits = messages.fetch_limits(TAIL_MS, None, None)
        topic, partition, offset = position
        fetched = yield from messages.fetch_table(topic, offset, partition, limits)
        return fetched, position._replace(next_offset=fetched.next_offset)

    def _name(self, topic: str) -> TopicName:
        return names.topic(topic, Namespace(*self._namespace))


class BlockingOperations(Operations, ABC):
    """Operations that return when they are done; a subclass exchanges requests for replies."""

    def tail(
        self, topic: str, offset: int | str = "latest", partition: object = None
    ) -> Iterator[FetchedTable]:
        """New messages, without end, from an offset, `earliest` or `latest` on."""
        position = self.run(self._tail_position(topic, offset, partition))
        while True:
            fetched, position = self.run(self._tail_step(position))
            if len(fetched):
                yield fetched

    def run(self, conversation: Conversation[_T]) -> _T:
        """Carry out a conversation and return its result."""
        try:
            request = next(conversation)
            while True:
                request = conversation.send(self._exchange(request))
        except StopIteration as end:
            result: _T = end.value
            return result

    @abstractmethod
    def _exchange(self, request: BrokerRequest) -> BrokerReply:
        """Send a request and return its reply; raises BrokerUnreachable."""


class AsyncOperations(Operations, ABC):
    """Operations that are awaited; a subclass exchanges requests for replies."""

    async def tail(
        self, topic: str, offset: int | str = "latest", partition: object = None
    ) -> AsyncIterator[FetchedTable]:
        """New messages, without end, from an offset, `earliest` or `latest` on."""
        position = await self.run(self._tail_position(topic, offset, partition))
        while True:
            fetched, position = await self.run(self._tail_step(position))
            if len(fetched):
                yield fetched

    async def run(self, conversation: Conversation[_T]) -> _T:
        """Carry out a conversation and return its result."""
        try:
            request = next(conversation)
            while True:
                request = conversation.send(await self._exchange(request))
        except StopIteration as end:
            result: _T = end.value
            return result

    @abstractmethod
    async def _exchange(self, request: BrokerRequest) -> BrokerReply:
        """Send a request and return its reply; raises BrokerUnreachable."""
