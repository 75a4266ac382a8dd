"""The door's own connections are the clients that the other rooms speak of."""

from penstock.doors.nats.client import Client
from penstock.doors.nats.clients import Clients, NatsLimits
from penstock.doors.nats.connection import Connection
from penstock.doors.nats.greeting import Credentials


async def test_a_connection_is_a_client() -> None:
    clients = Clients(("127.0.0.1", 1), NatsLimits(), Credentials(), "lab")
    client: Client = Connection(clients, 7)
    assert client.number == 7
    assert not client.open
