"""The server's own connections are the clients that the other rooms speak of."""

from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.clients import Clients, NatsLimits
from penstock.protocols.nats.connection import ClientConnection
from penstock.protocols.nats.greeting import Credentials


async def test_a_connection_is_a_client() -> None:
    clients = Clients(("127.0.0.1", 1), NatsLimits(), Credentials(), "lab")
    client: ConnectedClient = ClientConnection(clients, 7)
    assert client.number == 7
    assert not client.open
