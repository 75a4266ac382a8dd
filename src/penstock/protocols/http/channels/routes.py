"""The routes of the channel API, and their descriptions in the OpenAPI document."""

from __future__ import annotations

from functools import partial
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
_MESSAGE: Final = f"{_CHANNEL}/message/{{message}}"
_CHANNEL_TOKEN: Final = ("X-Broker-Channel-Token",)
_BOTH_TOKENS: Final = (*_CHANNEL_TOKEN, "X-Broker-Consumer-Token")
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
    records, status = RecordHandlers(service, bodies), StatusHandlers(service)
    return [
        *_record_routes(records),
        *_message_routes(service, bodies),
        *_job_routes(JobHandlers(service, bodies)),
        *_dead_job_routes(DeadJobHandlers(service, bodies)),
        *_consumer_routes(records),
        _route("GET", "/_status", status.seed, "Show the seed."),
        _route("GET", "/job-status", status.jobs, "Count jobs by state."),
        _route("GET", "/dlq-status", status.dead_jobs, "Count dead jobs."),
    ]


def _record_routes(records: RecordHandlers) -> list[Route]:
    producer, consumers = "/producer/{producer}", f"{_CHANNEL}/consumers"
    listed = partial(_route, "GET", query=_PAGES)
    put = partial(_route, "PUT", form=_RECORD)
    return [
        listed("/producers", records.list_producers, "List producers, newest first."),
        _route("GET", producer, records.show_producer, "Show a producer."),
        put(producer, records.put_producer, "Create or change a producer."),
        listed("/channels", records.list_channels, "List channels, newest first."),
        _route("GET", _CHANNEL, records.show_channel, "Show a channel."),
        put(_CHANNEL, records.put_channel, "Create or change a channel and its topic."),
        listed(consumers, records.list_consumers, "List consumers, newest first."),
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
    broadcast, scheduled = f"{_CHANNEL}/broadcast", f"{_CHANNEL}/scheduled-message/{{message}}"
    listed = partial(_route, "GET", query=(*_PAGES, "status"))
    return [
        _route(
            "POST",
            broadcast,
            broadcasts.broadcast,
            "Send a message, now or later.",
            201,
            tokens=_PRODUCER_TOKENS,
            body=BINARY,
        ),
        listed(f"{_CHANNEL}/messages", messages.list, "List messages, newest first."),
        _route("GET", _MESSAGE, messages.show, "Show a message and its jobs."),
        _route("GET", f"{_CHANNEL}/messages-status", messages.count, "Count messages."),
        listed(
            f"{_CHANNEL}/scheduled-messages", messages.list_scheduled, "List scheduled messages."
        ),
        _route("GET", scheduled, messages.show_scheduled, "Show a scheduled message."),
        _route(
            "DELETE",
            scheduled,
            messages.cancel_scheduled,
            "Cancel a scheduled message.",
            204,
            tokens=_CHANNEL_TOKEN,
        ),
    ]


def _job_routes(jobs: JobHandlers) -> list[Route]:
    row = partial(_route, tokens=_BOTH_TOKENS)
    queued, requeue = f"{_CONSUMER}/queued-jobs", f"{_JOB}/requeue-dead-job"
    claim, claim_query = f"{_CONSUMER}/claim", ("limit", "timeout")
    extend, replay = f"{_JOB}/extend", f"{_CONSUMER}/replay"
    change, extend_summary = typed(jobs.change_state), "Restart the timeout of a job in flight."
    return [
        row("GET", queued, jobs.list_queued, "List queued jobs.", query=("limit", "cursor")),
        row("POST", claim, typed(jobs.claim), "Claim queued jobs with leases.", query=claim_query),
        row("GET", _JOB, jobs.show, "Show a job."),
        row("POST", _JOB, change, "Change the state of a job.", 202, body=JSON),
        row("DELETE", _JOB, jobs.delete, "Delete a dead job without retries left.", 204),
        row("POST", requeue, typed(jobs.requeue), "Queue a dead job again.", 202),
        row("POST", extend, typed(jobs.extend), extend_summary, 202, query=("timeout",)),
        row("GET", f"{_JOB}/attempts", jobs.list_attempts, "List the recent attempts at a job."),
        row("GET", f"{_CONSUMER}/attempts", jobs.list_attempts, "List recent attempts."),
        row("POST", replay, typed(jobs.replay), "Deliver a range of messages again.", body=JSON),
    ]


def _dead_job_routes(dead: DeadJobHandlers) -> list[Route]:
    path, tokens = f"{_CONSUMER}/dlq", _BOTH_TOKENS
    return [
        _route("GET", path, dead.list, "List dead jobs, newest first.", query=_PAGES),
        _route(
            "POST", path, dead.requeue_all, "Queue all dead jobs again.", 202, form=("requeue",)
        ),
        _route("DELETE", path, dead.purge, "Delete dead jobs without retries left.", tokens=tokens),
    ]


def _consumer_routes(records: RecordHandlers) -> list[Route]:
    row = partial(_route, tokens=_BOTH_TOKENS)
    limits, limit_fields = f"{_CONSUMER}/limits", ("ratePerSecond", "concurrency")
    rotate, rotate_secret = f"{_CONSUMER}/rotate-secret", typed(records.rotate_secret, TEXT)
    disable, enable = typed(records.disable), typed(records.enable)
    return [
        row("GET", f"{_CONSUMER}/secret", records.show_secrets, "Show the signing secrets."),
        row("POST", rotate, rotate_secret, "Create a new signing secret.", body=TEXT),
        row("GET", limits, records.show_limits, "Show the limits of a consumer."),
        row("PUT", limits, records.put_limits, "Limit a consumer.", form=limit_fields),
        row("POST", f"{_CONSUMER}/disable", disable, "Stop pushing to a consumer.", 202),
        row("POST", f"{_CONSUMER}/enable", enable, "Push to a consumer again.", 202),
    ]


def _route(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    status: int = 200,
    *,
    tokens: tuple[str, ...] = (),
    query: tuple[str, ...] = (),
    form: tuple[str, ...] = (),
    body: str = "",
) -> Route:
    """A route: `status` is that of a success, `tokens` are headers, `body` is a media type."""
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
