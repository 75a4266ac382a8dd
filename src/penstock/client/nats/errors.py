"""What can go wrong with a NATS server.

PenstockError
└── NatsError
    ├── NatsUnreachable      no connection, or not any more
    ├── NatsProtocolError    it does not speak NATS
    ├── NatsTimeout          no answer in time
    ├── NatsStatus           a status instead of messages, such as 409 Consumer Deleted
    └── NatsRefused          the JetStream API says no
"""

from __future__ import annotations

from penstock.model.errors import PenstockError


class NatsError(PenstockError):
    """Something about a NATS server."""


class NatsUnreachable(NatsError):
    """There is no connection; what was asked may or may not have happened."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"the NATS server at {url} cannot be reached ({reason}); is it running?")
        self.url, self.reason = url, reason


class NatsProtocolError(NatsError):
    """What the server sends cannot be understood."""


class NatsTimeout(NatsError):
    """The answer did not come in time."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} within {seconds:g} s")
        self.seconds = seconds


class NatsStatus(NatsError):
    """The server ended a request with a status."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"the server answered {code} {description}".rstrip())
        self.code, self.description = code, description


class NatsRefused(NatsError):
    """The JetStream API answered with an error."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({code}, {err_code})")
        self.code, self.err_code, self.description = code, err_code, description
