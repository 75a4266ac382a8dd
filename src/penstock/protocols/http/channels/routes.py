"""The routes of the channel API, and their descriptions in the OpenAPI document."""

from __future__ import annotations

from typing import Final

from penstock.delivery.channels import ChannelService
from penstock.formats.api import JSON
from penstock.protocols.http import openapi
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.gateway import Gateway
from penstock.protocols.http.channels.jobs import DeadJobHandlers, JobHandlers
from penstock.protocols.http.channels.messages import BroadcastHandlers, MessageHandlers
from penstock.protocols.http.channels.records import RecordHandlers
from penstock.protocols.http.channels.replies import PlainRenderer
from penstock.protocols.http.channels.requests import TEXT, typed
from penstock.protocols.http.channels.status import StatusHandlers
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
    400: "The request is invalid; nothing was changed.",
    401: "The producer or consumer does not exist, or the job belongs to another consumer.",
    403: "A token or signature does not match.",
    404: "The resource does not exist.",
    409: "The id is taken, the lease is not current, or the resource has changed.",
    412: "The resource has changed, is not a pull consumer, or the time is too early.",
    413: "The body is too large.",
    415: "The content type of the body is not supported.",
    421: "Another broker serves this channel.",
    429: "A limit is reached; retry later.",
    503: "Temporarily unavailable; retry later.",
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
    status = StatusHandlers(service)
    return [
        *_record_routes(service, bodies),
        *_message_routes(service, bodies),
        *_job_routes(service, bodies),
        *_dead_letter_routes(service, bodies),
        *_consumer_routes(service, bodies),
        _route("GET", "/_status", status.seed, "Show the seed."),
        _route("GET", "/job-status", status.jobs, "Count jobs by state."),
        _route("GET", "/dlq-status", status.dead_jobs, "Count dead jobs."),
    ]


def _record_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    records = RecordHandlers(service, bodies)
    return [
        _route(
            "GET",
            "/producers",
            records.list_producers,
            "List producers, newest first.",
            query=_PAGES,
        ),
        _route("GET", "/producer/{producer}", records.show_producer, "Show a producer."),
        _route(
            "PUT",
            "/producer/{producer}",
            records.put_producer,
            "Create or change a producer.",
            form=_RECORD,
        ),
        _route(
            "GET", "/channels", records.list_channels, "List channels, newest first.", query=_PAGES
        ),
        _route("GET", _CHANNEL, records.show_channel, "Show a channel."),
        _route(
            "PUT",
            _CHANNEL,
            records.put_channel,
            "Create or change a channel and its topic.",
            form=_RECORD,
        ),
        _route(
            "GET",
            f"{_CHANNEL}/consumers",
            records.list_consumers,
            "List consumers, newest first.",
            query=_PAGES,
        ),
        _route("GET", _CONSUMER, records.show_consumer, "Show a consumer."),
        _route(
            "PUT",
            _CONSUMER,
            records.put_consumer,
            "Create or change a consumer.",
            form=(*_RECORD, "callbackUrl", "type"),
        ),
        _route(
            "DELETE", _CONSUMER, records.delete_consumer, "Delete a consumer and its jobs.", 204
        ),
    ]


def _message_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    broadcasts, messages = BroadcastHandlers(service, bodies), MessageHandlers(service)
    return [
        _route(
            "POST",
            f"{_CHANNEL}/broadcast",
            broadcasts.broadcast,
            "Send a message, now or later.",
            201,
            _PRODUCER_TOKENS,
            body=BINARY,
        ),
        _route(
            "GET",
            f"{_CHANNEL}/messages",
            messages.list,
            "List messages, newest first.",
            query=(*_PAGES, "status"),
        ),
        _route(
            "GET",
            f"{_CHANNEL}/message/{{message}}",
            messages.show,
            "Show a message and its jobs.",
        ),
        _route("GET", f"{_CHANNEL}/messages-status", messages.count, "Count messages."),
        _route(
            "GET",
            f"{_CHANNEL}/scheduled-messages",
            messages.list_scheduled,
            "List scheduled messages.",
            query=(*_PAGES, "status"),
        ),
        _route("GET", _SCHEDULED, messages.show_scheduled, "Show a scheduled message."),
        _route(
            "DELETE",
            _SCHEDULED,
            messages.cancel_scheduled,
            "Cancel a scheduled message.",
            204,
            _CHANNEL_TOKEN,
        ),
    ]


def _job_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    jobs = JobHandlers(service, bodies)
    return [
        _route(
            "GET",
            f"{_CONSUMER}/queued-jobs",
            jobs.list_queued,
            "List queued jobs.",
            200,
            _BOTH,
            ("limit", "cursor"),
        ),
        _route(
            "POST",
            f"{_CONSUMER}/claim",
            typed(jobs.claim),
            "Claim queued jobs with leases.",
            200,
            _BOTH,
            ("limit", "timeout"),
        ),
        _route("GET", _JOB, jobs.show, "Show a job.", 200, _BOTH),
        _route(
            "POST",
            _JOB,
            typed(jobs.change_state),
            "Change the state of a job.",
            202,
            _BOTH,
            body=JSON,
        ),
        _route(
            "DELETE",
            _JOB,
            jobs.delete,
            "Delete a dead job without retries left.",
            204,
            _BOTH,
        ),
        _route(
            "POST",
            f"{_JOB}/requeue-dead-job",
            typed(jobs.requeue),
            "Queue a dead job again.",
            202,
            _BOTH,
        ),
        _route(
            "POST",
            f"{_JOB}/extend",
            typed(jobs.extend),
            "Restart the timeout of a job in flight.",
            202,
            _BOTH,
            ("timeout",),
        ),
        _route(
            "GET",
            f"{_JOB}/attempts",
            jobs.list_attempts,
            "List the recent attempts at a job.",
            200,
            _BOTH,
        ),
        _route(
            "GET",
            f"{_CONSUMER}/attempts",
            jobs.list_attempts,
            "List recent attempts.",
            200,
            _BOTH,
        ),
    ]


def _dead_letter_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    dead = DeadJobHandlers(service, bodies)
    return [
        _route("GET", f"{_CONSUMER}/dlq", dead.list, "List dead jobs, newest first.", query=_PAGES),
        _route(
            "POST",
            f"{_CONSUMER}/dlq",
            dead.requeue_all,
            "Queue all dead jobs again.",
            202,
            form=("requeue",),
        ),
        _route(
            "DELETE",
            f"{_CONSUMER}/dlq",
            dead.purge,
            "Delete dead jobs without retries left.",
            200,
            _BOTH,
        ),
    ]


def _consumer_routes(service: ChannelService, bodies: Bodies) -> list[Route]:
    records, jobs = RecordHandlers(service, bodies), JobHandlers(service, bodies)
    return [
        _route(
            "POST",
            f"{_CONSUMER}/replay",
            typed(jobs.replay),
            "Deliver a range again.",
            200,
            _BOTH,
            body=JSON,
        ),
        _route(
            "GET",
            f"{_CONSUMER}/secret",
            records.show_secrets,
            "Show the signing secrets.",
            200,
            _BOTH,
        ),
        _route(
            "POST",
            f"{_CONSUMER}/rotate-secret",
            typed(records.rotate_secret, TEXT),
            "Create a new signing secret.",
            200,
            _BOTH,
            body=TEXT,
        ),
        _route(
            "GET",
            f"{_CONSUMER}/limits",
            records.show_limits,
            "Show the limits of a consumer.",
            200,
            _BOTH,
        ),
        _route(
            "PUT",
            f"{_CONSUMER}/limits",
            records.put_limits,
            "Limit the deliveries to a consumer.",
            200,
            _BOTH,
            form=("ratePerSecond", "concurrency"),
        ),
        _route(
            "POST",
            f"{_CONSUMER}/disable",
            typed(records.disable),
            "Stop pushing to a consumer.",
            202,
            _BOTH,
        ),
        _route(
            "POST",
            f"{_CONSUMER}/enable",
            typed(records.enable),
            "Push to a consumer again.",
            202,
            _BOTH,
        ),
    ]


def _route(
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
