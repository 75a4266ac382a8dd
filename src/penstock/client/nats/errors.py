"""Errors of the NATS client.

PenstockError
└── NatsError
    ├── NatsUnreachable      there is no connection, or it was lost
    ├── NatsProtocolError    the server does not speak NATS
    ├── NatsTimeout          no reply in time
    ├── NatsStatus           a status instead of messages, such as 409 Consumer Deleted
    └── NatsRefused          an error reply of the JetStream API
"""

from __future__ import annotations

from penstock.model.errors import PenstockError


class NatsError(PenstockError):
    """An error of the NATS client."""

    code = "nats_error"


class NatsUnreachable(NatsError):
    """There is no connection; the server may or may not have carried out a request."""

    code = "nats_unreachable"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"the NATS server at {url} cannot be reached ({reason}); is it running?")
        self.url, self.reason = url, reason


class NatsProtocolError(NatsError):
    """The server sent bytes that are not NATS."""

    code = "nats_protocol_error"


class NatsTimeout(NatsError):
    """No reply arrived in time."""

    code = "nats_timeout"

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} within {seconds:g} s")
        self.seconds = seconds


class NatsStatus(NatsError):
    """The server ended a request with a status."""

    code = "nats_status"

    def __init__(self, status: int, description: str) -> None:
        super().__init__(f"the server answered {status} {description}".rstrip())
        self.status, self.description = status, description


class NatsRefused(NatsError):
    """The JetStream API replied with an error."""

    code = "nats_refused"

    def __init__(self, status: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({status}, {err_code})")
        self.status, self.err_code, self.description = status, err_code, description
