"""The routes of the channel API, with what the OpenAPI document says about them."""

from __future__ import annotations

from typing import Final

from penstock.delivery.channels.service import ChannelService
from penstock.formats.api import JSON
from penstock.protocols.http import openapi
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.broadcast import BroadcastCalls
from penstock.protocols.http.channels.dead_letters import DeadLetters
from penstock.protocols.http.channels.entities import EntityPages
from penstock.protocols.http.channels.extensions import Extensions
from penstock.protocols.http.channels.gateway import Gateway
from penstock.protocols.http.channels.jobs import JobCalls
from penstock.protocols.http.channels.messages import MessagePages
from penstock.protocols.http.channels.replies import PlainRenderer
from penstock.protocols.http.channels.requests import TEXT, typed
from penstock.protocols.http.channels.status import StatusPages
from penstock.protocols.http.routes import Handler, Parameter, Route, Router

ROOTS: Final = frozenset(
    ("producers", "producer", "channels", "channel", "_status", "job-status", "dlq-status")
)
"""The first segments of all paths of the channel API."""

BINARY: Final = "application/octet-stream"
_CHANNEL: Final = "/channel/{channel}"
_CONSUMER: Final = f"{_CHANNEL}/consumer/{{consumer}}"
_JOB: Final = f"{_CONSUMER}/job/{{job}}"
_SCHEDULED: Final = f"{_CHANNEL}/scheduled-message/{{message}}"
_CHANNEL_TOKEN: Final = ("X-Broker-Channel-Token",)
_BOTH: Final = (*_CHANNEL_TOKEN, "X-Broker-Consumer-Token")
_PRODUCER_TOKENS: Final = (*_CHANNEL_TOKEN, "X-Broker-Producer-ID", "X-Broker-Producer-Token")
_PAGES: Final = ("next", "previous")
_RECORD: Final = ("name", "token")
_ANY_TEXT: Final = {"type": "string", "minLength": 0}
_REFUSALS: Final = {
    400: "The request is not valid; nothing was done.",
    401: "There is no such producer or consumer, or it is another one's job.",
    403: "A token or signature does not match.",
    404: "There is no such thing.",
    409: "The id is taken, the lease is another one's, or it cannot be now.",
    412: "It has changed meanwhile, is not a consumer that pulls, or the time is too soon.",
    413: "The body is too large.",
    415: "The body is of another type than the call takes.",
    421: "Another broker serves this channel.",
    429: "A limit is reached; retry later.",
    503: "Not possible now; retry later.",
}
_MEANINGS: Final = dict.fromkeys((200, 201, 202, 204), "Done.") | _REFUSALS


def channel_router(
    service: ChannelService, bodies: Bodies, gateway: Gateway | None = None
) -> Router:
    """Serves the channel API; a gateway checks the signatures of requests first."""
    authenticate = None if gateway is None else gateway.checked
    return Router(_routes(service, bodies), PlainRenderer(), authenticate)


def section(routes: list[Route]) -> openapi.Section:
    """The channel API in the OpenAPI document."""
    return openapi.Section(routes, _MEANINGS, ("channels",))


def _routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    status = StatusPages(service)
    return [
        *_record_routes(service, bodies),
        *_message_routes(service, bodies),
        *_job_routes(service, bodies),
        *_dead_letter_routes(service, bodies),
        *_consumer_routes(service, bodies),
        _row("GET", "/_status", status.status, "What was seeded."),
        _row("GET", "/job-status", status.job_status, "Count jobs by state."),
        _row("GET", "/dlq-status", status.dlq_status, "Count dead jobs."),
    ]


def _record_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    records = EntityPages(service, bodies)
    return [
        _row("GET", "/producers", records.producers, "List producers, newest first.", query=_PAGES),
        _row("GET", "/producer/{producer}", records.producer, "Show a producer."),
        _row(
            "PUT",
            "/producer/{producer}",
            records.put_producer,
            "Make or change a producer.",
            form=_RECORD,
        ),
        _row("GET", "/channels", records.channels, "List channels, newest first.", query=_PAGES),
        _row("GET", _CHANNEL, records.channel, "Show a channel."),
        _row(
            "PUT",
            _CHANNEL,
            records.put_channel,
            "Make or change a channel and its topic.",
            form=_RECORD,
        ),
        _row(
            "GET",
            f"{_CHANNEL}/consumers",
            records.consumers,
            "List consumers, newest first.",
            query=_PAGES,
        ),
        _row("GET", _CONSUMER, records.consumer, "Show a consumer."),
        _row(
            "PUT",
            _CONSUMER,
            records.put_consumer,
            "Make or change a consumer.",
            form=(*_RECORD, "callbackUrl", "type"),
        ),
        _row("DELETE", _CONSUMER, records.delete_consumer, "Delete a consumer and its jobs.", 204),
    ]


def _message_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    broadcasts, messages = BroadcastCalls(service, bodies), MessagePages(service)
    return [
        _row(
            "POST",
            f"{_CHANNEL}/broadcast",
            broadcasts.broadcast,
            "Send a message, now or later.",
            201,
            _PRODUCER_TOKENS,
            body=BINARY,
        ),
        _row(
            "GET",
            f"{_CHANNEL}/messages",
            messages.messages,
            "List messages, newest first.",
            query=(*_PAGES, "status"),
        ),
        _row(
            "GET",
            f"{_CHANNEL}/message/{{message}}",
            messages.message,
            "Show a message and its jobs.",
        ),
        _row("GET", f"{_CHANNEL}/messages-status", messages.messages_status, "Count messages."),
        _row(
            "GET",
            f"{_CHANNEL}/scheduled-messages",
            messages.scheduled_messages,
            "List messages for later.",
            query=(*_PAGES, "status"),
        ),
        _row("GET", _SCHEDULED, messages.scheduled_message, "Show a message for later."),
        _row(
            "DELETE",
            _SCHEDULED,
            messages.cancel,
            "Cancel a message for later.",
            204,
            _CHANNEL_TOKEN,
        ),
    ]


def _job_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    jobs, more = JobCalls(service, bodies), Extensions(service, bodies)
    return [
        _row(
            "GET",
            f"{_CONSUMER}/queued-jobs",
            jobs.queued,
            "List queued jobs.",
            200,
            _BOTH,
            ("limit", "cursor"),
        ),
        _row(
            "POST",
            f"{_CONSUMER}/claim",
            typed(more.claim),
            "Take jobs with leases.",
            200,
            _BOTH,
            ("limit", "timeout"),
        ),
        _row("GET", _JOB, jobs.job, "Show a job.", 200, _BOTH),
        _row("POST", _JOB, typed(jobs.ask), "Change the state of a job.", 202, _BOTH, body=JSON),
        _row("DELETE", _JOB, jobs.delete, "Forget a dead job without retries left.", 204, _BOTH),
        _row(
            "POST",
            f"{_JOB}/requeue-dead-job",
            typed(jobs.requeue),
            "Queue a dead job again.",
            202,
            _BOTH,
        ),
        _row(
            "POST",
            f"{_JOB}/extend",
            typed(more.extend),
            "Begin a job's time anew.",
            202,
            _BOTH,
            ("timeout",),
        ),
        _row("GET", f"{_JOB}/attempts", more.attempts, "Show the attempts at a job.", 200, _BOTH),
        _row("GET", f"{_CONSUMER}/attempts", more.attempts, "Show the last attempts.", 200, _BOTH),
    ]


def _dead_letter_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    dead = DeadLetters(service, bodies)
    return [
        _row("GET", f"{_CONSUMER}/dlq", dead.show, "List dead jobs, newest first.", query=_PAGES),
        _row(
            "POST",
            f"{_CONSUMER}/dlq",
            dead.requeue,
            "Queue all dead jobs again.",
            202,
            form=("requeue",),
        ),
        _row(
            "DELETE",
            f"{_CONSUMER}/dlq",
            dead.purge,
            "Forget dead jobs without retries left.",
            200,
            _BOTH,
        ),
    ]


def _consumer_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    more = Extensions(service, bodies)
    return [
        _row(
            "POST",
            f"{_CONSUMER}/replay",
            typed(more.replay),
            "Deliver a range again.",
            200,
            _BOTH,
            body=JSON,
        ),
        _row(
            "GET",
            f"{_CONSUMER}/secret",
            more.secret,
            "Show what deliveries are signed with.",
            200,
            _BOTH,
        ),
        _row(
            "POST",
            f"{_CONSUMER}/rotate-secret",
            typed(more.rotate, TEXT),
            "Sign with a new secret.",
            200,
            _BOTH,
            body=TEXT,
        ),
        _row(
            "GET", f"{_CONSUMER}/limits", more.limits, "Show the limits of a consumer.", 200, _BOTH
        ),
        _row(
            "PUT",
            f"{_CONSUMER}/limits",
            more.put_limits,
            "Limit a consumer.",
            200,
            _BOTH,
            form=("ratePerSecond", "concurrency"),
        ),
        _row(
            "POST",
            f"{_CONSUMER}/disable",
            typed(more.disable),
            "Push nothing to a consumer.",
            202,
            _BOTH,
        ),
        _row(
            "POST",
            f"{_CONSUMER}/enable",
            typed(more.enable),
            "Push to a consumer again.",
            202,
            _BOTH,
        ),
    ]


def _row(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    status: int = 200,
    tokens: tuple[str, ...] = (),
    query: tuple[str, ...] = (),
    form: tuple[str, ...] = (),
    body: str = "",
) -> Route:
    """A route; `status` is that of a success, `tokens` are headers, `body` a media type."""
    parameters = (
        *(Parameter(name, schema=_ANY_TEXT, location="header") for name in tokens),
        *(Parameter(name, schema=_ANY_TEXT) for name in query),
    )
    replies = dict.fromkeys((status, *_REFUSALS))
    return Route(
        method,
        path,
        handler,
        summary,
        replies,
        parameters=parameters,
        form=form,
        content_type=body,
    )
