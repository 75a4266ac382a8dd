"""A NATS client that publishes to streams and pulls from their consumers."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple

from penstock.client.nats.connection import NatsConnection
from penstock.client.nats.errors import NatsError, NatsRefused
from penstock.client.nats.messages import Message
from penstock.client.nats.protocol import (
    Arrival,
    Inbox,
    header_block,
    publish,
    subject_bytes,
    subscribe,
    unsubscribe,
)
from penstock.client.nats.pulling import PullParameters, fetch, fetch_one

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
REPLY_SECONDS: Final = 5.0
CONSUMER_NOT_FOUND: Final = 10014


class Stored(NamedTuple):
    """The acknowledgement of a publish: where the message is stored."""

    stream: str
    sequence: int
    duplicate: bool = False


async def connect(url: str = DEFAULT_URL) -> NatsClient:
    """Connect to the server at `nats://[USER:PASSWORD@|TOKEN@]HOST:PORT`.

    Raises NatsUnreachable.
    """
    return NatsClient(await NatsConnection.open(url, lambda: secrets.token_hex(11)))


class NatsClient:
    """Use it with `async with`, on one event loop; every method raises NatsUnreachable."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def __aenter__(self) -> NatsClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def send(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish without waiting for an acknowledgement."""
        command = publish(subject_bytes(subject), b"", payload, header_block(headers))
        await self._connection.write(command)

    async def flush(self) -> None:
        """Wait until the server has received everything that was sent before."""
        await self._connection.flush()

    async def ask(self, subject: str, payload: bytes, seconds: float = REPLY_SECONDS) -> Arrival:
        """Send a request and return the first reply.

        Raises NatsTimeout, and NatsStatus if the subject has no responders.
        """
        return await self._connection.request(subject_bytes(subject), payload, seconds)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        seconds: float = REPLY_SECONDS,
    ) -> Stored:
        """Publish to a stream and wait until the message is stored.

        Raises NatsRefused, NatsTimeout, and NatsStatus if no stream has the subject.
        """
        reply = await self._connection.request(
            subject_bytes(subject), payload, seconds, header_block(headers)
        )
        document = _document(reply)
        return Stored(document["stream"], document["seq"], document.get("duplicate", False))

    async def api(self, endpoint: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API and return its reply.

        Raises NatsRefused, NatsTimeout and NatsStatus.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        return _document(await self.ask(f"$JS.API.{endpoint}", payload))

    async def pull_subscribe(
        self, stream: str, durable: str, filter_subject: str | None = None
    ) -> PullSubscription:
        """Pull from a durable consumer, which is created if the stream has none of this name."""
        try:
            await self.api(f"CONSUMER.INFO.{stream}.{durable}")
        except NatsRefused as error:
            if error.err_code != CONSUMER_NOT_FOUND:
                raise
            config: dict[str, Any] = {"durable_name": durable, "ack_policy": "explicit"}
            if filter_subject is not None:
                config["filter_subject"] = filter_subject
            body = {"stream_name": stream, "config": config}
            await self.api(f"CONSUMER.DURABLE.CREATE.{stream}.{durable}", body)
        subscription = PullSubscription(self, self._connection, stream, durable)
        await subscription.open()
        return subscription


class PullSubscription:
    """Pulls from one consumer; fetches may run at the same time."""

    def __init__(
        self, client: NatsClient, connection: NatsConnection, stream: str, consumer: str
    ) -> None:
        self._client, self._connection = client, connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self._wildcard = Inbox(b"", b"")
        self._tokens = 0
        self._fetch_one_lock = asyncio.Lock()

    async def open(self) -> None:
        """Subscribe to the reply subjects of requests for a single message.

        Requests for more use an inbox each: messages carry their own subjects, so that replies to
        several requests could not be told apart.
        """
        prefix = self._connection.unique_subject()
        inbox = self._connection.inbox(prefix + b".*")
        self._wildcard = Inbox(prefix, inbox.sid)
        await self._connection.write(subscribe(inbox))

    async def fetch(self, batch: int, seconds: float = REPLY_SECONDS) -> list[Message]:
        """Pull at least one message and at most `batch`.

        Raises NatsTimeout if none arrives in time, and NatsStatus with the server's status.
        """
        if batch < 1:
            raise NatsError(f"a batch has at least one message, not {batch}")
        parameters = PullParameters(self._subject, seconds)
        if batch == 1:
            return [Message(await self._fetch_one(parameters), self._client)]
        inbox = self._connection.inbox()
        try:
            arrivals = await self._connection.converse(fetch(parameters, inbox, batch), seconds)
        except asyncio.CancelledError:
            await self._connection.write(unsubscribe(inbox.sid))
            raise
        finally:
            self._connection.forget(inbox)
        return [Message(arrival, self._client) for arrival in arrivals]

    async def close(self) -> None:
        """Stop pulling; the consumer remains."""
        await self._connection.write(unsubscribe(self._wildcard.sid))
        self._connection.forget(self._wildcard)

    async def _fetch_one(self, parameters: PullParameters) -> Arrival:
        async with self._fetch_one_lock:
            self._tokens += 1
            alone = self._connection.inbox()
            token = b"%d" % self._tokens
            try:
                return await self._connection.converse(
                    fetch_one(parameters, self._wildcard, token, alone), parameters.seconds
                )
            except asyncio.CancelledError:
                await self._connection.write(unsubscribe(alone.sid))
                raise
            finally:
                self._connection.forget(alone)


def _document(reply: Arrival) -> dict[str, Any]:
    """The JSON of a reply of the JetStream API; raises NatsRefused."""
    document: dict[str, Any] = json.loads(reply.payload)
    error = document.get("error")
    if error is not None:
        raise NatsRefused(error["code"], error.get("err_code", 0), error["description"])
    return document
