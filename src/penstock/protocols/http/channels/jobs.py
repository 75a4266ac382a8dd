"""Handlers for the jobs of a consumer: pull, settle and replay them, and manage dead ones."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from penstock.delivery.channels import (
    OFFSET_LIMIT,
    ChannelService,
    EndpointJobs,
    JobDetails,
    JobState,
    PageCursor,
    Refusal,
)
from penstock.model.times import parse_time_us, time_text_us
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.replies import (
    ChannelRefusal,
    channel_path,
    consumer_path,
    empty,
    job_path,
    json_reply,
    message_path,
    not_found,
    page_links,
    producer_path,
    public_url,
    text_of,
)
from penstock.protocols.http.channels.requests import (
    Access,
    cursor_query,
    form,
    tokens_match,
    whole_number,
)
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

JOBS_DEFAULT: Final = 25
JOBS_MAX: Final = 100
ATTEMPTS_SHOWN: Final = 100
TIMEOUT_SECONDS_MAX: Final = 1_000_000_000
LEASE: Final = b"x-broker-lease"
_INVALID_QUERY: Final = "invalid query parameter"
_INVALID_BODY: Final = Refusal.TRANSITION.value
_TOKEN_MUST_MATCH: Final = "`requeue` form param must match consumer token"  # noqa: S105


class ReplayRange(msgspec.Struct, rename={"start": "From", "stop": "To"}):
    """A range of messages: offsets or times, with an exclusive end."""

    start: int | str = 0
    stop: int | str | None = None


class JobHandlers:
    """Shows and changes jobs; all requests need both tokens."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._access, self._bodies = Access(service), bodies

    async def list_queued(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request, pull=True)
        limit, cursor = _limit(request), request.value("cursor")
        found, last_key = await jobs.queued(limit, _cursor_key(cursor) if cursor else -1)
        view: dict[str, Any] = {"Result": [_queued_view(jobs, job) for job in found]}
        if cursor is not None:
            view["Next"] = cursor if last_key is None else f"{last_key:x}"
        return json_reply(view)

    async def claim(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request, pull=True)
        limit, seconds = _limit(request), _timeout(request)
        views = [
            _queued_view(jobs, job) | {"IncrementalTimeout": seconds, "Lease": f"{job.lease:x}"}
            for job in await jobs.claim(limit, seconds)
        ]
        return json_reply({"Result": views})

    async def show(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request, pull=True)
        job = await jobs.details(self._access.job(request, jobs))
        return json_reply(_job_view(jobs, job))

    async def change_state(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request, pull=True)
        offset = self._access.job(request, jobs)
        async with self._bodies.read(request.scope, request.receive) as data:
            state, timeout_seconds = parse_transition(bytes(data))
        lease = await jobs.change_state(offset, state, timeout_seconds, _lease(request))
        if lease is None or state != "INFLIGHT":
            return empty(202)
        return empty(202, (LEASE, b"%x" % lease))

    async def extend(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request, pull=True)
        offset = self._access.job(request, jobs)
        lease = _lease(request)
        if lease is None:
            raise BadRequest("X-Broker-Lease is missing")
        await jobs.extend(offset, lease, _timeout(request))
        return empty(202, (LEASE, b"%x" % lease))

    async def requeue(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request)
        if not await jobs.requeue(self._access.job(request, jobs)):
            raise BadRequest("job could not be found")
        return empty(202)

    async def delete(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request, unknown=not_found())
        if not await jobs.purge(self._access.job(request, jobs, foreign_status=404)):
            raise ChannelRefusal(404, "job is not dead or retry not exhausted")
        return empty(204)

    async def list_attempts(self, request: Request) -> Reply:
        """The recent attempts at the job in the path, or at all jobs of the consumer."""
        jobs = await self._access.jobs(request)
        offset = self._access.job(request, jobs) if "job" in request.path else None
        views = [
            {
                "JobID": job_id,
                "Number": attempt.number,
                "At": time_text_us(attempt.at_us),
                "Status": attempt.status,
                "LatencyMs": attempt.latency_ms,
                "Error": attempt.error,
            }
            for job_id, attempt in jobs.attempts(offset)[:ATTEMPTS_SHOWN]
        ]
        return json_reply({"Attempts": views})

    async def replay(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request)
        async with self._bodies.read(request.scope, request.receive) as data:
            try:
                messages = msgspec.json.decode(data or b"{}", type=ReplayRange)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadRequest(str(error)) from None
            except RecursionError:
                raise BadRequest("the JSON is nested too deeply") from None
        first = await _offset(jobs, messages.start)
        stop = None if messages.stop is None else await _offset(jobs, messages.stop)
        return json_reply({"requeuedCount": await jobs.replay(first, stop)})


class DeadJobHandlers:
    """Lists, requeues and purges the dead jobs of a consumer."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._access, self._bodies = Access(service), bodies

    async def list(self, request: Request) -> Reply:
        """Dead jobs, for clients without a token: callback URLs are shown without credentials."""
        jobs = await self._access.public_jobs(request)
        found = await jobs.dead(cursor_query(request))
        channel, consumer = jobs.channel, jobs.endpoint
        cursors = [
            PageCursor(job.message.timestamp_us, job.message.assigned_id(channel.key))
            for job in found
        ]
        path = f"{consumer_path(channel.id, consumer.id)}/dlq"
        views = [_dead_view(jobs, job) for job in found]
        return json_reply({"DeadJobs": views, "Pages": page_links(path, cursors)})

    async def requeue_all(self, request: Request) -> Reply:
        fields = await form(request, self._bodies)
        jobs = await self._access.public_jobs(request)
        if not tokens_match(fields.get("requeue"), jobs.endpoint.token):
            raise BadRequest(_TOKEN_MUST_MATCH)
        await jobs.requeue()
        return empty(202)

    async def purge(self, request: Request) -> Reply:
        jobs = await self._access.jobs(request, unknown=not_found())
        return json_reply({"deletedCount": await jobs.purge()})


def parse_transition(data: bytes) -> tuple[str, int]:
    """The state and the timeout in a body, whose member names may have any case."""
    try:
        document = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        members = {name.lower(): bytes(value) for name, value in document.items()}
        state = msgspec.json.decode(members.get("nextstate", b'""'), type=str | None) or ""
        seconds = msgspec.json.decode(members.get("incrementaltimeout", b"0"), type=int | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest(_INVALID_BODY) from None
    if not 0 <= (seconds or 0) <= TIMEOUT_SECONDS_MAX:
        raise BadRequest(_INVALID_BODY)
    return state, seconds or 0


def _limit(request: Request) -> int:
    """The maximum number of jobs in the reply."""
    text = request.value("limit")
    if text is None:
        return JOBS_DEFAULT
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 18:
        raise BadRequest(_INVALID_QUERY)
    return min(int(digits), JOBS_MAX)


def _timeout(request: Request) -> int:
    return whole_number("timeout", request.value("timeout") or "0", TIMEOUT_SECONDS_MAX)


def _lease(request: Request) -> int | None:
    text = request.header(LEASE)
    try:
        return None if text is None else int(text, 16)
    except ValueError:
        raise ChannelRefusal(409, Refusal.LEASE.value) from None


def _cursor_key(cursor: str) -> int:
    try:
        key = int(cursor, 16)
    except ValueError:
        raise BadRequest(_INVALID_QUERY) from None
    if not 0 <= key < 1 << 63:
        raise BadRequest(_INVALID_QUERY)
    return key


async def _offset(jobs: EndpointJobs, bound: int | str) -> int:
    """The offset in a bound, or that of the first message that is not older than its time."""
    if isinstance(bound, int):
        if not 0 <= bound < OFFSET_LIMIT:
            raise BadRequest(f"an offset must be a whole number from 0 to {OFFSET_LIMIT - 1}")
        return bound
    try:
        time_us = parse_time_us(bound)
    except (ValueError, OverflowError):
        raise BadRequest("a time must be written as in RFC 3339") from None
    return await jobs.offset_at(time_us)


# -- views


def _queued_view(jobs: EndpointJobs, job: JobDetails) -> dict[str, Any]:
    """A job for the consumer; a payload that is not UTF-8 is included in base64 too."""
    message = job.message
    view: dict[str, Any] = {
        "MessageID": message.public_id(jobs.channel.key),
        "Payload": text_of(message.payload),
        "Headers": dict(message.headers),
        "ContentType": message.content_type,
    }
    if view["Payload"].encode() != message.payload:
        view["PayloadBase64"] = base64.b64encode(message.payload).decode()
    return {"ID": job.id, "Priority": job.priority, "IncrementalTimeout": 0, "Message": view}


def _dead_view(jobs: EndpointJobs, job: JobDetails) -> dict[str, str]:
    channel, consumer = jobs.channel, jobs.endpoint
    path = job_path(channel.id, consumer.id, job.id)
    return {
        "ListenerEndpoint": public_url(consumer.callback_url),
        "ListenerName": consumer.name,
        "Status": "DEAD",
        "StatusChangedAt": time_text_us(job.changed_us),
        "MessageURL": message_path(channel.id, job.message.public_id(channel.key)),
        "JobRequeueURL": f"{path}/requeue-dead-job",
    }


def _job_view(jobs: EndpointJobs, job: JobDetails) -> dict[str, str]:
    """A job for a client with both tokens, which may see the whole callback URL."""
    channel, consumer, producer = jobs.channel, jobs.endpoint, job.message.producer
    dead = job.state is JobState.DEAD
    return (
        _dead_view(jobs, job)
        | {
            "ListenerEndpoint": consumer.callback_url,
            "Status": job.state.name,
            "ChannelURL": channel_path(channel.id),
            "ConsumerURL": consumer_path(channel.id, consumer.id),
            "ProducerURL": producer_path(producer) if producer else "",
        }
        | ({} if dead else {"JobRequeueURL": ""})
    )
