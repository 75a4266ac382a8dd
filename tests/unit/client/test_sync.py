import socket
import time

import msgspec
import pytest

from penstock import BrokerRefused, BrokerUnreachable, SyncClient
from tests.unit.client.script import TOPIC
from tests.unit.client.served import serving


def test_requests_share_a_connection() -> None:
    with serving() as server, SyncClient(server.url) as client:
        server.body = msgspec.json.encode(TOPIC)
        for _ in range(3):
            assert client.topic("orders").durability == "fsync"
        assert server.connections == 1
        assert server.seen[0].accept == "application/json"


def test_a_connection_that_was_closed_while_idle_is_replaced_for_any_request() -> None:
    with serving() as server, SyncClient(server.url) as client:
        server.keeps_connections = False
        server.body = msgspec.json.encode(TOPIC)
        for number in range(1, 4):
            client.create_topic("orders")
            assert server.connections == number
            time.sleep(0.05)


def test_an_error_has_the_broker_s_message() -> None:
    with serving() as server, SyncClient(server.url, "a/b") as client:
        server.status, server.body = 404, b'{"message":"topic x does not exist"}'
        with pytest.raises(BrokerRefused, match="topic x does not exist"):
            client.delete_topic("x")
        assert server.seen[0].path == "/v1/tenants/a/namespaces/b/topics/x"


def test_a_broker_that_does_not_run_is_an_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with SyncClient(url) as client, pytest.raises(BrokerUnreachable, match=r"refused.*--url"):
        client.topics()


def test_a_topic_s_full_name_wins_over_the_namespace() -> None:
    with serving() as server, SyncClient(server.url, "a/b") as client:
        server.body = msgspec.json.encode(TOPIC)
        client.topic("c/d/x")
        assert server.seen[0].path == "/v1/tenants/c/namespaces/d/topics/x"
