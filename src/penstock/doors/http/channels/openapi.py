"""The channel API as the OpenAPI document tells it."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from penstock.doors.http.channels.requests import FORM

_NAMES: Final = re.compile(r"\{(\w+)\}")
_CHANNEL: Final = ("X-Broker-Channel-Token",)
_BOTH: Final = (*_CHANNEL, "X-Broker-Consumer-Token")
_PRODUCER: Final = (*_CHANNEL, "X-Broker-Producer-ID", "X-Broker-Producer-Token")
_PAGES: Final = ("next", "previous")
_REFUSALS: Final = {
    400: "The request is not valid; nothing was done.",
    401: "There is no such producer or consumer, or it is another one's job.",
    403: "A token or signature does not match.",
    404: "There is no such thing.",
    409: "The id is taken, the lease is another one's, or it cannot be now.",
    412: "It has changed meanwhile, is not a consumer that pulls, or the time is too soon.",
    413: "The body is too large.",
    415: "The body is not a form.",
    421: "Another broker serves this channel.",
    429: "A limit is reached; retry later.",
    503: "Not possible now; retry later.",
}


class About(NamedTuple):
    """One call: what it does, its status when it did, and what it takes."""

    summary: str
    status: int = 200
    tokens: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    form: tuple[str, ...] = ()
    body: str = ""
    """Type of a body that is no form."""


_RECORD: Final = ("name", "token")
_K: Final = "/channel/{channel}/consumer/{consumer}"
_J: Final = f"{_K}/job/{{job}}"
_LATER: Final = "/channel/{channel}/scheduled-message/{message}"
ABOUT: Final[dict[str, dict[str, About]]] = {
    "/producers": {"GET": About("List producers, newest first.", query=_PAGES)},
    "/producer/{producer}": {
        "GET": About("Show a producer."),
        "PUT": About("Make or change a producer.", form=_RECORD),
    },
    "/channels": {"GET": About("List channels, newest first.", query=_PAGES)},
    "/channel/{channel}": {
        "GET": About("Show a channel."),
        "PUT": About("Make or change a channel and its topic.", form=_RECORD),
    },
    "/channel/{channel}/consumers": {"GET": About("List consumers, newest first.", query=_PAGES)},
    _K: {
        "GET": About("Show a consumer."),
        "PUT": About("Make or change a consumer.", form=(*_RECORD, "callbackUrl", "type")),
        "DELETE": About("Delete a consumer and its jobs.", 204),
    },
    "/channel/{channel}/broadcast": {
        "POST": About(
            "Send a message, now or later.", 201, _PRODUCER, body="application/octet-stream"
        )
    },
    "/channel/{channel}/messages": {
        "GET": About("List messages, newest first.", query=(*_PAGES, "status"))
    },
    "/channel/{channel}/message/{message}": {"GET": About("Show a message and its jobs.")},
    "/channel/{channel}/messages-status": {"GET": About("Count messages.")},
    "/channel/{channel}/scheduled-messages": {
        "GET": About("List messages for later.", query=(*_PAGES, "status"))
    },
    _LATER: {
        "GET": About("Show a message for later."),
        "DELETE": About("Cancel a message for later.", 204, _CHANNEL),
    },
    f"{_K}/queued-jobs": {"GET": About("List queued jobs.", 200, _BOTH, ("limit", "cursor"))},
    f"{_K}/claim": {"POST": About("Take jobs with leases.", 200, _BOTH, ("limit", "timeout"))},
    _J: {
        "GET": About("Show a job.", 200, _BOTH),
        "POST": About("Change the state of a job.", 202, _BOTH, body="application/json"),
        "DELETE": About("Forget a dead job without retries left.", 204, _BOTH),
    },
    f"{_J}/requeue-dead-job": {"POST": About("Queue a dead job again.", 202, _BOTH)},
    f"{_J}/extend": {"POST": About("Begin a job's time anew.", 202, _BOTH, ("timeout",))},
    f"{_J}/attempts": {"GET": About("Show the attempts at a job.", 200, _BOTH)},
    f"{_K}/attempts": {"GET": About("Show the last attempts.", 200, _BOTH)},
    f"{_K}/replay": {"POST": About("Deliver a range again.", 200, _BOTH, body="application/json")},
    f"{_K}/secret": {"GET": About("Show what deliveries are signed with.", 200, _BOTH)},
    f"{_K}/rotate-secret": {"POST": About("Sign with a new secret.", 200, _BOTH)},
    f"{_K}/limits": {
        "GET": About("Show the limits of a consumer.", 200, _BOTH),
        "PUT": About("Limit a consumer.", 200, _BOTH, form=("ratePerSecond", "concurrency")),
    },
    f"{_K}/disable": {"POST": About("Push nothing to a consumer.", 202, _BOTH)},
    f"{_K}/enable": {"POST": About("Push to a consumer again.", 202, _BOTH)},
    f"{_K}/dlq": {
        "GET": About("List dead jobs, newest first.", query=_PAGES),
        "POST": About("Queue all dead jobs again.", 202, form=("requeue",)),
        "DELETE": About("Forget dead jobs without retries left.", 200, _BOTH),
    },
    "/_status": {"GET": About("What was seeded.")},
    "/job-status": {"GET": About("Count jobs by state.")},
    "/dlq-status": {"GET": About("Count dead jobs.")},
}


def paths() -> dict[str, Any]:
    """Every call, for the document of the whole door."""
    return {
        path: {method.lower(): _operation(method, path, about) for method, about in calls.items()}
        for path, calls in ABOUT.items()
    }


def _operation(method: str, path: str, about: About) -> dict[str, Any]:
    done = {about.status: "Done."} | _REFUSALS
    operation: dict[str, Any] = {
        "summary": about.summary,
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", path)]),
        "tags": ["channels"],
        "responses": {str(status): {"description": text} for status, text in done.items()},
        "parameters": [
            *(_parameter(name, "path") for name in _NAMES.findall(path)),
            *(_parameter(name, "header") for name in about.tokens),
            *(_parameter(name, "query") for name in about.query),
        ],
    }
    if about.form:
        fields = {"type": "object", "properties": {name: {"type": "string"} for name in about.form}}
        operation["requestBody"] = {"content": {FORM: {"schema": fields}}}
    elif about.body:
        operation["requestBody"] = {"content": {about.body: {}}}
    return operation


def _parameter(name: str, where: str) -> dict[str, Any]:
    least = 1 if where == "path" else 0
    schema = {"type": "string", "minLength": least}
    return {"name": name, "in": where, "required": where == "path", "schema": schema}
