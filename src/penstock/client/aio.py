"""A client for asyncio: any number of requests at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Final, TypeVar

import aiohttp

from penstock.client import calls
from penstock.client.exchange import BrokerUnreachable, Conversation, Reply, Request, broker_url
from penstock.client.results import Fetched, Message, Pushed
from penstock.client.sync import ANSWER_SECONDS, TAIL_MS
from penstock.formats import api
from penstock.model import names
from penstock.model.names import Namespace, TopicName

CONNECTIONS_MAX: Final = 1000

_T = TypeVar("_T")


class Client:
    """The methods of SyncClient, awaited; use it with `async with`, on one event loop."""

    def __init__(
        self, url: str | None = None, namespace: str = str(names.DEFAULT_NAMESPACE)
    ) -> None:
        self.url = broker_url(url)
        self._namespace = names.namespace(namespace)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def create_topic(
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
        return await self.run(calls.create_topic(name, body))

    async def topic(self, topic: str) -> api.TopicReply:
        return await self.run(calls.get_topic(self._name(topic)))

    async def topics(self) -> list[api.TopicReply]:
        return await self.run(calls.list_topics(self._namespace))

    async def partitions(self, topic: str) -> list[api.PartitionReply]:
        return await self.run(calls.list_partitions(self._name(topic)))

    async def delete_topic(self, topic: str) -> None:
        """Remove the topic and all its data."""
        await self.run(calls.delete_topic(self._name(topic)))

    async def push(self, topic: str, data: object, partition: object = None) -> list[Pushed]:
        """As SyncClient.push."""
        return await self.run(calls.push(self._name(topic), data, partition))

    async def fetch(
        self,
        topic: str,
        offset: int,
        partition: object = None,
        timeout_ms: int | None = None,
        min_messages: int | None = None,
        max_messages: int | None = None,
    ) -> Fetched:
        """As SyncClient.fetch; cancelling it frees what waits in the broker."""
        limits = calls.limits(timeout_ms, min_messages, max_messages)
        return await self.run(calls.fetch(self._name(topic), offset, partition, limits))

    async def tail(
        self, topic: str, offset: int | str = "latest", partition: object = None
    ) -> AsyncIterator[Fetched]:
        """As SyncClient.tail."""
        name = self._name(topic)
        tagged = await self.run(calls.tag(name, partition))
        next_offset = await self.run(calls.resolve(name, offset, tagged))
        while True:
            limits = calls.limits(TAIL_MS, None, None)
            fetched = await self.run(calls.fetch(name, next_offset, tagged, limits))
            next_offset = fetched.next_offset
            if len(fetched):
                yield fetched

    async def get(
        self,
        topic: str,
        offset: int | None = None,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
        start: int | None = None,
        partition: object = None,
    ) -> Message:
        """As SyncClient.get."""
        query = calls.choice(offset, last_by_subject, next_by_subject, start)
        return await self.run(calls.get(self._name(topic), partition, query))

    async def run(self, conversation: Conversation[_T]) -> _T:
        """Carry out a conversation."""
        try:
            request = next(conversation)
            while True:
                request = conversation.send(await self._exchange(request))
        except StopIteration as end:
            result: _T = end.value
            return result

    def _name(self, topic: str) -> TopicName:
        return names.topic(topic, Namespace(*self._namespace))

    async def _exchange(self, request: Request) -> Reply:
        session = self._session = self._session or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
        )
        headers = {"Accept": request.accept, **dict(request.headers)}
        if request.body:
            headers["Content-Type"] = request.content_type
        try:
            async with session.request(
                request.method,
                f"{self.url}{request.path}",
                data=request.body or None,
                headers=headers,
                timeout=aiohttp.ClientTimeout(ANSWER_SECONDS + request.wait_seconds),
            ) as response:
                told = {name.lower(): value for name, value in response.headers.items()}
                return Reply(response.status, await response.read(), told)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise BrokerUnreachable(self.url, reason) from error
