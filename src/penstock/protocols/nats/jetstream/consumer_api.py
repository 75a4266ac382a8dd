"""The JetStream API of consumers: create, update, info, list, pause, reset and delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from penstock.delivery.consumers import Consumer, Consumers, Deliveries, PushConsumer, consumer_view
from penstock.host.clock import Clock
from penstock.model.times import time_text, time_text_us
from penstock.protocols.nats.jetstream.api import Answer, ApiEndpoint, ApiRequest
from penstock.wire.jetstream import consumer_config, documents, errors, requests
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.consumer_rules import check
from penstock.wire.jetstream.documents import LIST_LIMIT, ConsumerInfo, PriorityGroup, SequenceInfo
from penstock.wire.jetstream.times import ZERO_TIME


async def describe(consumer: Consumer, config: dict[str, Any], clock: Clock) -> ConsumerInfo:
    """The CONSUMER.INFO document of a consumer, with `config` as its configuration."""
    ledger, remaining = consumer.ledger, consumer.pause_remaining_ns
    push = isinstance(consumer, PushConsumer)
    return ConsumerInfo(
        consumer.stream.name,
        consumer.name,
        time_text_us(consumer.created_us),
        config,
        _sequences(ledger.consumer_seq, ledger.stream_seq, consumer.activity.delivered_us),
        _sequences(ledger.floor_consumer_seq, ledger.floor_stream_seq, consumer.activity.acked_us),
        len(ledger.pending),
        ledger.pending.redelivered,
        0 if push else len(ledger.waiting),
        await consumer.ahead(),
        push_bound=True if isinstance(consumer, PushConsumer) and consumer.bound else UNSET,
        paused=True if remaining else UNSET,
        pause_remaining=remaining or UNSET,
        ts=time_text_us(clock.now_us()),
        priority_groups=_groups(consumer) or UNSET,
    )


def _sequences(consumer_seq: int, stream_seq: int, active_us: int) -> SequenceInfo:
    active = time_text_us(active_us) if active_us else UNSET
    return SequenceInfo(consumer_seq, stream_seq, active)


def _groups(consumer: Consumer) -> list[PriorityGroup]:
    pin = consumer.ledger.pin.id
    since = time_text_us(consumer.activity.pinned_us) if pin else ZERO_TIME
    return [PriorityGroup(name, pin or UNSET, since) for name in consumer.config.priority_groups]


TOKENS_MAX: Final = 128
"""The most tokens of a filter in the subject of a request."""


class ConsumerApi:
    """Endpoints of the consumer API."""

    def __init__(self, deliveries: Deliveries, clock: Clock) -> None:
        self._deliveries, self._clock = deliveries, clock

    def endpoints(self) -> dict[str, ApiEndpoint]:
        created = "consumer_create_response"
        return {
            "CONSUMER.CREATE": ApiEndpoint(self._create, created, 1, TOKENS_MAX),
            "CONSUMER.DURABLE.CREATE": ApiEndpoint(self._create_durable, created, 2, 2),
            "CONSUMER.INFO": ApiEndpoint(self._info, "consumer_info_response", 2, 2),
            "CONSUMER.NAMES": ApiEndpoint(self._names, "consumer_names_response", 1, 1),
            "CONSUMER.LIST": ApiEndpoint(self._list, "consumer_list_response", 1, 1),
            "CONSUMER.DELETE": ApiEndpoint(self._delete, "consumer_delete_response", 2, 2),
            "CONSUMER.PAUSE": ApiEndpoint(self._pause, "consumer_pause_response", 2, 2),
            "CONSUMER.RESET": ApiEndpoint(self._reset, "consumer_reset_response", 2, 2),
            "CONSUMER.VIEW": ApiEndpoint(self._view, "consumer_view_response", 2, 2),
            "CONSUMER.UNPIN": ApiEndpoint(self._unpin, "consumer_unpin_response", 2, 2),
        }

    async def _create(self, request: ApiRequest) -> Answer:
        stream, *names = request.tokens
        name, filter_subject = (names[0] if names else ""), ".".join(names[1:])
        return await self._create_or_update(
            request, lambda body: consumer_config.addressed(body, stream, name, filter_subject)
        )

    async def _create_durable(self, request: ApiRequest) -> Answer:
        stream, name = request.tokens
        return await self._create_or_update(
            request, lambda body: consumer_config.addressed_durable(body, stream, name)
        )

    async def _create_or_update(
        self,
        request: ApiRequest,
        addressed: Callable[[consumer_config.CreateRequest], ConsumerConfig],
    ) -> Answer:
        """Create or update a consumer; `addressed` checks the request against its subject."""
        body = consumer_config.parse_create_request(request.body)
        config = addressed(body)
        consumers = await self._consumers(request)
        stream = consumers.stream.config
        config = consumer_config.normalised(config, stream.consumer_limits, pedantic=body.pedantic)
        existing = consumers.get(config.name)
        if existing is not None and not body.config.inactive_threshold:
            config = replace(config, inactive_threshold=existing.config.inactive_threshold)
        check(config, stream)
        consumer = await consumers.create(config, body.action)
        return documents.reply("consumer_create_response", await self._describe(consumer))

    async def _info(self, request: ApiRequest) -> Answer:
        _no_body(request)
        _, consumer = await self._find(request)
        return documents.reply("consumer_info_response", await self._describe(consumer))

    async def _names(self, request: ApiRequest) -> Answer:
        page_request = requests.parse_page(request.body, "JSApiConsumersRequest")
        names = [consumer.name for consumer in await self._consumers(request)]
        return documents.names("consumer", names, page_request.offset)

    async def _list(self, request: ApiRequest) -> Answer:
        page_request = requests.parse_page(request.body, "JSApiConsumersRequest")
        every = list(await self._consumers(request))
        offset = min(max(page_request.offset, 0), len(every))
        page = [
            await describe(consumer, consumer_config.listed(consumer.config), self._clock)
            for consumer in every[offset : offset + LIST_LIMIT]
        ]
        return documents.infos("consumer", page, len(every), offset)

    async def _delete(self, request: ApiRequest) -> Answer:
        _no_body(request)
        if not await (await self._consumers(request)).delete(request.tokens[1]):
            raise errors.CONSUMER_NOT_FOUND.error()
        return documents.success("consumer_delete_response")

    async def _pause(self, request: ApiRequest) -> Answer:
        until = requests.parse_pause(request.body)
        consumers, consumer = await self._find(request)
        text = "" if until is None else time_text(until)
        paused = replace(consumer.config, pause_until=text)
        limits = consumers.stream.config.consumer_limits
        unused = consumer.config.inactive_threshold
        config = replace(consumer_config.normalised(paused, limits), inactive_threshold=unused)
        await consumers.pause(consumer, config)
        remaining = consumer.pause_remaining_ns
        state: dict[str, Any] = {"paused": remaining > 0, "pause_until": text or ZERO_TIME}
        if remaining:
            state["pause_remaining"] = remaining
        return documents.reply("consumer_pause_response", state)

    async def _reset(self, request: ApiRequest) -> Answer:
        seq = requests.parse_reset(request.body)
        consumers, consumer = await self._find(request)
        position = {"reset_seq": await consumers.reset(consumer, seq)}
        return documents.reply("consumer_reset_response", await self._describe(consumer), position)

    async def _view(self, request: ApiRequest) -> Answer:
        _no_body(request)
        _, consumer = await self._find(request)
        shown = await consumer_view(consumer, self._clock.monotonic_ns())
        return documents.reply("consumer_view_response", shown)

    async def _unpin(self, request: ApiRequest) -> Answer:
        group = requests.parse_unpin(request.body)
        _, consumer = await self._find(request)
        if group not in consumer.config.priority_groups:
            raise errors.PRIORITY_GROUP_UNKNOWN.error()
        consumer.unpin()
        return documents.reply("consumer_unpin_response")

    async def _consumers(self, request: ApiRequest) -> Consumers:
        consumers = await self._deliveries.of(request.tokens[0])
        if consumers is None:
            raise errors.STREAM_NOT_FOUND.error()
        return consumers

    async def _find(self, request: ApiRequest) -> tuple[Consumers, Consumer]:
        consumers = await self._consumers(request)
        consumer = consumers.get(request.tokens[1])
        if consumer is None:
            raise errors.CONSUMER_NOT_FOUND.error()
        return consumers, consumer

    async def _describe(self, consumer: Consumer) -> documents.ConsumerInfo:
        return await describe(consumer, consumer_config.shown(consumer.config), self._clock)


def _no_body(request: ApiRequest) -> None:
    """Treat an empty JSON object as an empty body."""
    if request.body.translate(None, b" \t\r\n") not in (b"", b"{}"):
        raise errors.NOT_EMPTY_REQUEST.error()
