from penstock.delivery.consumers.statuses import block
from penstock.ledger.requests import Status


def test_a_status_is_a_header_block() -> None:
    assert block(Status(b"in", 404, "No Messages")) == b"NATS/1.0 404 No Messages\r\n\r\n"
    left = (("Nats-Pending-Messages", 3), ("Nats-Pending-Bytes", 0))
    assert block(Status(b"in", 408, "Request Timeout", left)) == (
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n"
    )
