"""Jobs of consumers that pull, one job as it is, and dead ones."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from penstock.delivery.channels.broadcast import id_of
from penstock.delivery.channels.consumer_jobs import ConsumerJobs
from penstock.delivery.channels.messages import JobMessage
from penstock.delivery.channels.service import ChannelService
from penstock.ledger.job_ids import JobPlace, job_id
from penstock.ledger.job_states import JobState, Refusal, offset_of, priority_of
from penstock.model.times import time_text_us
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels import paths
from penstock.protocols.http.channels.access import Access, AskedJob
from penstock.protocols.http.channels.messages import text_of
from penstock.protocols.http.channels.replies import ChannelRefusal, empty, json, not_found
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

LIMIT_DEFAULT: Final = 25
LIMIT_MAX: Final = 100
TIMEOUT_SECONDS_MAX: Final = 1_000_000_000
LEASE: Final = b"x-broker-lease"
_INVALID_QUERY: Final = "invalid query parameter"
_INVALID: Final = Refusal.TRANSITION.value


class JobCalls:
    """Serves jobs."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._bodies = bodies
        self._access = Access(service)

    async def queued(self, request: Request) -> Reply:
        asked = await self._access.asked(request, pull=True)
        limit, cursor = limit_of(request.value("limit")), request.value("cursor")
        after = -1 if not cursor else _key(cursor)
        keys = asked.ledger.queued(limit, after)
        found = [(key, await asked.message(offset_of(key))) for key in keys]
        answer: dict[str, Any] = {
            "Result": [queued_view(asked, priority_of(key), m) for key, m in found if m is not None]
        }
        if cursor is not None:
            answer["Next"] = f"{keys[-1]:x}" if keys else cursor
        return json(answer)

    async def job(self, request: Request) -> Reply:
        asked = await self._access.asked(request, pull=True)
        found = self._access.job(request, asked)
        message = await asked.open.jobs.message(found.offset)
        if message is None:
            raise ChannelRefusal(404, "job could not be found")
        return json(_view(found, message))

    async def ask(self, request: Request) -> Reply:
        asked = await self._access.asked(request, pull=True)
        found = self._access.job(request, asked)
        async with self._bodies.read(request.scope, request.receive) as data:
            state, incremental = transition(bytes(data))
        lease = await asked.change_state(found.offset, state, incremental, lease_of(request))
        if lease is None or state != "INFLIGHT":
            return empty(202)
        return empty(202, (LEASE, b"%x" % lease))

    async def requeue(self, request: Request) -> Reply:
        asked = await self._access.asked(request)
        found = self._access.job(request, asked)
        if not await asked.requeue(found.offset):
            raise BadRequest("job could not be found")
        return empty(202)

    async def delete(self, request: Request) -> Reply:
        asked = await self._access.asked(request, unknown=not_found())
        found = self._access.job(request, asked, foreign=404)
        if found.facts.state is not JobState.DEAD or not asked.ledger.exhausted(found.offset):
            raise ChannelRefusal(404, "job is not dead or retry not exhausted")
        await asked.purge(found.offset)
        return empty(204)


def limit_of(text: str | None) -> int:
    """How many jobs are asked for."""
    if text is None:
        return LIMIT_DEFAULT
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 18:
        raise BadRequest(_INVALID_QUERY)
    return min(int(digits), LIMIT_MAX)


def transition(data: bytes) -> tuple[str, int]:
    """The state and the timeout that a body asks for; names of members in whatever case."""
    try:
        asked = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        members = {name.lower(): bytes(value) for name, value in asked.items()}
        state = msgspec.json.decode(members.get("nextstate", b'""'), type=str | None) or ""
        seconds = msgspec.json.decode(members.get("incrementaltimeout", b"0"), type=int | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest(_INVALID) from None
    if not 0 <= (seconds or 0) <= TIMEOUT_SECONDS_MAX:
        raise BadRequest(_INVALID)
    return state, seconds or 0


def lease_of(request: Request) -> int | None:
    told = request.header(LEASE)
    try:
        return None if told is None else int(told, 16)
    except ValueError:
        raise ChannelRefusal(409, Refusal.LEASE.value) from None


def id_of_job(asked: ConsumerJobs, offset: int, message_us: int) -> str:
    """The id of a job by the offset of its message and the time that was stored."""
    place = JobPlace(asked.consumer.number, offset)
    return job_id(asked.channel.key.encode(), place, message_us)


def queued_view(asked: ConsumerJobs, priority: int, message: JobMessage) -> dict[str, Any]:
    """A job as a consumer gets it; a payload that is no text comes as base64 beside it."""
    shown: dict[str, Any] = {
        "MessageID": id_of(asked.channel, message),
        "Payload": text_of(message.payload),
        "Headers": dict(message.headers),
        "ContentType": message.content_type,
    }
    if shown["Payload"].encode() != message.payload:
        shown["PayloadBase64"] = base64.b64encode(message.payload).decode()
    return {
        "ID": id_of_job(asked, message.offset, message.timestamp_us),
        "Priority": priority,
        "IncrementalTimeout": 0,
        "Message": shown,
    }


def dead_view(asked: ConsumerJobs, message: JobMessage, changed_us: int) -> dict[str, str]:
    """A dead job as the list of dead letters has it."""
    channel, consumer = asked.channel, asked.consumer
    path = paths.job(
        channel.id, consumer.id, id_of_job(asked, message.offset, message.timestamp_us)
    )
    return {
        "ListenerEndpoint": consumer.callback_url,
        "ListenerName": consumer.name,
        "Status": "DEAD",
        "StatusChangedAt": time_text_us(changed_us or message.timestamp_us),
        "MessageURL": paths.message(channel.id, id_of(channel, message)),
        "JobRequeueURL": f"{path}/requeue-dead-job",
    }


def _view(found: AskedJob, message: JobMessage) -> dict[str, str]:
    asked, facts = found.asked, found.facts
    channel, consumer = asked.channel, asked.consumer
    path = paths.job(channel.id, consumer.id, id_of_job(asked, found.offset, message.timestamp_us))
    dead = facts.state is JobState.DEAD
    return {
        "ListenerEndpoint": consumer.callback_url,
        "ListenerName": consumer.name,
        "Status": facts.state.name,
        "StatusChangedAt": time_text_us(facts.changed_us or message.timestamp_us),
        "MessageURL": paths.message(channel.id, id_of(channel, message)),
        "ChannelURL": paths.channel(channel.id),
        "ConsumerURL": paths.consumer(channel.id, consumer.id),
        "ProducerURL": paths.producer(message.producer) if message.producer else "",
        "JobRequeueURL": f"{path}/requeue-dead-job" if dead else "",
    }


def _key(cursor: str) -> int:
    try:
        key = int(cursor, 16)
    except ValueError:
        raise BadRequest(_INVALID_QUERY) from None
    if not 0 <= key < 1 << 63:
        raise BadRequest(_INVALID_QUERY)
    return key
