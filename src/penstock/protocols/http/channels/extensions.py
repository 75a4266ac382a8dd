"""What the existing API has not: leases, attempts, replay, secrets, limits, on and off.

All of it needs both tokens.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.delivery.channels.consumer_jobs import ConsumerJobs
from penstock.delivery.channels.service import ChannelService
from penstock.ledger.job_states import OFFSET_LIMIT
from penstock.metadata.channel_records import Consumer
from penstock.model.times import parse_time_us, time_text_us
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.access import Access
from penstock.protocols.http.channels.jobs import (
    LEASE,
    TIMEOUT_SECONDS_MAX,
    id_of_job,
    lease_of,
    limit_of,
    queued_view,
)
from penstock.protocols.http.channels.replies import ChannelRefusal, empty, json
from penstock.protocols.http.channels.requests import form
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

ATTEMPTS_SHOWN: Final = 100
LIMIT_MAX: Final = 1_000_000
DISABLED_BY_HAND: Final = "it was disabled by hand"
_CONFLICT: Final = "the consumer has changed meanwhile; retry"


class Replay(msgspec.Struct, rename={"start": "From", "stop": "To"}):
    """What to deliver again: offsets or times, `To` not included."""

    start: int | str = 0
    stop: int | str | None = None


class Extensions:
    """Serves our own calls."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies
        self._access = Access(service)

    async def claim(self, request: Request) -> Reply:
        asked = await self._access.asked(request, pull=True)
        limit = limit_of(request.value("limit"))
        seconds = _number("timeout", request.value("timeout") or "0", TIMEOUT_SECONDS_MAX)
        found = []
        for offset, lease in await asked.claim(limit, seconds):
            message = await asked.message(offset)
            if message is not None:
                view = queued_view(asked, message.priority, message)
                found.append(view | {"IncrementalTimeout": seconds, "Lease": f"{lease:x}"})
        return json({"Result": found})

    async def extend(self, request: Request) -> Reply:
        asked = await self._access.asked(request, pull=True)
        found = self._access.job(request, asked)
        lease = lease_of(request)
        if lease is None:
            raise BadRequest("X-Broker-Lease is missing")
        seconds = _number("timeout", request.value("timeout") or "0", TIMEOUT_SECONDS_MAX)
        await asked.extend(found.offset, lease, seconds)
        return empty(202, (LEASE, b"%x" % lease))

    async def attempts(self, request: Request) -> Reply:
        asked = await self._access.asked(request)
        target = self._service.channels.target(asked.consumer)
        known = [] if target is None else list(target.attempts)
        if "job" in request.path:
            offset = self._access.job(request, asked).offset
            known = [attempt for attempt in known if attempt.offset == offset]
        return json(
            {
                "Attempts": [
                    {
                        "JobID": id_of_job(asked, attempt.offset, attempt.message_us),
                        "Number": attempt.number,
                        "At": time_text_us(attempt.at_us),
                        "Status": attempt.status,
                        "LatencyMs": attempt.latency_ms,
                        "Error": attempt.error,
                    }
                    for attempt in known[: -ATTEMPTS_SHOWN - 1 : -1]
                ]
            }
        )

    async def replay(self, request: Request) -> Reply:
        asked = await self._access.asked(request)
        async with self._bodies.read(request.scope, request.receive) as data:
            try:
                wanted = msgspec.json.decode(data or b"{}", type=Replay)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadRequest(str(error)) from None
            except RecursionError:
                raise BadRequest("the JSON is nested too deeply") from None
        first = await _offset(asked, wanted.start)
        stop = OFFSET_LIMIT if wanted.stop is None else await _offset(asked, wanted.stop)
        return json({"requeuedCount": await asked.replay(first, stop)})

    # -- secrets, limits, on and off

    async def secret(self, request: Request) -> Reply:
        consumer = (await self._access.asked(request)).consumer
        await self._service.entities.forget_old_secrets(consumer)
        return json({"Secrets": self._fresh(consumer).secrets})

    async def rotate(self, request: Request) -> Reply:
        consumer = (await self._access.asked(request)).consumer
        async with self._bodies.read(request.scope, request.receive) as data:
            given = bytes(data).decode("ascii", "replace").strip()
        try:
            changed = await self._service.entities.rotate_secret(consumer, given)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        if changed is None:
            raise ChannelRefusal(409, _CONFLICT)
        return json({"Secrets": changed.secrets})

    async def limits(self, request: Request) -> Reply:
        consumer = (await self._access.asked(request)).consumer
        return json(_limits(consumer))

    async def put_limits(self, request: Request) -> Reply:
        consumer = (await self._access.asked(request)).consumer
        fields = await form(request, self._bodies)
        rate = _number("ratePerSecond", fields.get("ratePerSecond", "0"), LIMIT_MAX)
        concurrency = _number("concurrency", fields.get("concurrency", "0"), LIMIT_MAX)
        if not await self._service.entities.limit(consumer, rate, concurrency):
            raise ChannelRefusal(409, _CONFLICT)
        return json(_limits(self._fresh(consumer)))

    async def disable(self, request: Request) -> Reply:
        consumer = (await self._access.asked(request)).consumer
        await self._service.channels.disable(consumer, DISABLED_BY_HAND)
        return empty(202)

    async def enable(self, request: Request) -> Reply:
        asked = await self._access.asked(request)
        await self._service.channels.disable(asked.consumer, "")
        asked.wake()
        return empty(202)

    # -- details

    def _fresh(self, consumer: Consumer) -> Consumer:
        return self._service.store.consumers(consumer.channel).get(consumer.id) or consumer


def _limits(consumer: Consumer) -> dict[str, Any]:
    return {
        "RatePerSecond": consumer.rate_per_second,
        "Concurrency": consumer.concurrency,
        "Disabled": bool(consumer.disabled),
        "DisabledReason": consumer.disabled,
    }


def _number(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) > most:
        raise BadRequest(f"{name} must be a whole number from 0 to {most}")
    return int(text)


async def _offset(asked: ConsumerJobs, told: int | str) -> int:
    """An offset as it is, or of the first message that is not older than a time."""
    if isinstance(told, int):
        if not 0 <= told < OFFSET_LIMIT:
            raise BadRequest(f"an offset must be a whole number from 0 to {OFFSET_LIMIT - 1}")
        return told
    try:
        us = parse_time_us(told)
    except (ValueError, OverflowError):
        raise BadRequest("a time must be written as in RFC 3339") from None
    return await asked.offset_at(us)
