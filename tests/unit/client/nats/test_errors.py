from penstock.client.nats.errors import (
    NatsError,
    NatsProtocolError,
    NatsRefused,
    NatsStatus,
    NatsTimeout,
    NatsUnreachable,
)
from penstock.model.errors import PenstockError


def test_errors_have_attributes_and_a_message_of_one_line() -> None:
    told: dict[NatsError, str] = {
        NatsUnreachable("nats://h:1", "refused"): (
            "the NATS server at nats://h:1 cannot be reached (refused); is it running?"
        ),
        NatsProtocolError("what"): "what",
        NatsTimeout("no message came", 0.5): "no message came within 0.5 s",
        NatsStatus(409, "Consumer Deleted"): "the server answered 409 Consumer Deleted",
        NatsStatus(503, ""): "the server answered 503",
        NatsRefused(404, 10059, "stream not found"): "stream not found (404, 10059)",
    }
    assert [str(error) for error in told] == list(told.values())
    assert all(isinstance(error, PenstockError) for error in told)
