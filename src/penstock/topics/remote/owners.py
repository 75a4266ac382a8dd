"""Reads messages that only a topic's owner has, from its HTTP server."""

from __future__ import annotations

from typing import Final

import aiohttp
import msgspec

from penstock.formats import api, arrow_stream
from penstock.model.batch import Batch
from penstock.model.errors import FormatError, LogError
from penstock.model.names import Namespace
from penstock.model.units import Offset
from penstock.topics.source import TopicPartition

HTTP_OK: Final = 200
CONNECTIONS_MAX: Final = 100
TIMEOUT_MS: Final = 200
"""Time that the owner may wait for the messages, which exist unless they were just deleted."""
SECONDS_MAX: Final = 10.0
"""Limit for a whole reply."""


class OwnerUnavailable(LogError):
    """The owner of a topic did not send messages that it has; a later attempt may succeed."""

    code = "owner_unavailable"

    def __init__(self, topic: str, address: str, reason: str) -> None:
        super().__init__(topic, f"its owner at {address}: {reason}; retry later")
        self.address, self.reason = address, reason


class Owners:
    """Connections to owners; create it where an event loop runs."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            timeout=aiohttp.ClientTimeout(total=SECONDS_MAX),
        )

    async def fetch(
        self, address: str, partition: TopicPartition, offset: Offset, messages_max: int
    ) -> list[Batch]:
        """Messages from `offset` on, perhaps none; raises OwnerUnavailable."""
        name = partition.topic.name
        request = api.FetchRequest(
            namespace=Namespace(name.tenant, name.namespace).full,
            topics=[
                api.FetchTopic(
                    topic=name.topic,
                    offset=offset,
                    partition_value=None if partition.value is None else partition.value.to_json(),
                )
            ],
            timeout_ms=TIMEOUT_MS,
            max_messages=messages_max,
        )
        try:
            body = await self._post(address, msgspec.json.encode(request))
            answer = arrow_stream.read_fetch_reply(body, partition.topic.spec.schema)
        except TimeoutError:
            reason = f"no answer in {SECONDS_MAX:.0f} s"
        except (aiohttp.ClientError, FormatError) as error:
            reason = str(error)
        else:
            if answer.error is None:
                return answer.batches
            reason = answer.error
        raise OwnerUnavailable(name.full, address, reason)

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, address: str, body: bytes) -> bytes:
        headers = {"content-type": api.JSON, "accept": api.ARROW_STREAM}
        url = f"http://{address}/v1/fetch"
        async with self._session.post(url, data=body, headers=headers) as response:
            data = await response.read()
        if response.status != HTTP_OK:
            raise FormatError(_message(data) or f"HTTP status {response.status}")
        return data


def _message(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=api.ErrorReply).message
    except msgspec.DecodeError:
        return ""
