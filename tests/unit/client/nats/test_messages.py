import pytest

from penstock.client.nats.errors import NatsError
from penstock.client.nats.messages import Delivery, Message
from penstock.client.nats.protocol import Arrival

REPLY = "$JS.ACK.S.d.2.7.9.1794771593179182549.3"


class Noted:
    """Records acknowledgements."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    async def send(self, subject: str, payload: bytes) -> None:
        self.sent.append((subject, payload))

    async def ask(self, subject: str, payload: bytes, seconds: float) -> Arrival:
        self.sent.append((f"{subject} within {seconds}", payload))
        return Arrival(b"", b"", b"", b"", b"")


def _message(noted: Noted, reply: str = REPLY) -> Message:
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    return Message(Arrival(b"s.a", b"1", reply.encode(), block, b"hi"), noted)


async def test_every_acknowledgement_has_its_bytes() -> None:
    noted = Noted()
    message = _message(noted)
    await message.ack()
    await message.nak()
    await message.nak(0.4)
    await message.in_progress()
    await message.term()
    await message.term("bad thing")
    await message.ack_confirmed(2)
    assert noted.sent == [
        (REPLY, b"+ACK"),
        (REPLY, b"-NAK"),
        (REPLY, b'-NAK {"delay": 400000000}'),
        (REPLY, b"+WPI"),
        (REPLY, b"+TERM"),
        (REPLY, b"+TERM bad thing"),
        (f"{REPLY} within 2", b"+ACK"),
    ]


def test_a_message_knows_its_position_in_stream_and_consumer() -> None:
    message = _message(Noted())
    assert (message.subject, message.payload, message.header("A")) == ("s.a", b"hi", "b")
    assert message.header("a") is None
    assert message.delivery == Delivery("S", "d", 2, 7, 9, 1794771593179182549, 3)
    assert repr(message) == "Message('s.a', 2 bytes)"


def test_a_message_that_no_consumer_delivered_has_no_position() -> None:
    with pytest.raises(NatsError, match=r"^no consumer delivered the message"):
        _ = _message(Noted(), "_INBOX.x").delivery
