"""Admission of clients, and the totals of those that have disconnected."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from penstock.protocols.nats.clients import Clients, NatsLimits
from penstock.protocols.nats.greeting import Credentials
from tests.broker.nats import NatsSite
from tests.eventually import eventually


def made(limits: NatsLimits | None = None) -> Clients:
    return Clients(("127.0.0.1", 4222), limits or NatsLimits(), Credentials(), "")


async def test_connections_are_limited() -> None:
    clients = made(NatsLimits(connections=2))
    first, second, third = (clients.create_client() for _ in range(3))
    assert clients.admit(first)
    assert clients.admit(second)
    assert not clients.admit(third)
    clients.forget(third)
    assert list(clients.open) == [1, 2]
    clients.forget(first)
    assert clients.admit(third)


async def test_a_closing_server_admits_no_client() -> None:
    clients = made()
    clients.leaving = True
    assert not clients.admit(clients.create_client())
    assert clients.empty.is_set()


async def test_the_server_is_empty_after_the_last_client_has_left() -> None:
    clients = made()
    one, other = clients.create_client(), clients.create_client()
    clients.admit(one)
    clients.admit(other)
    clients.forget(one)
    assert not clients.empty.is_set()
    clients.forget(other)
    assert clients.empty.is_set()


async def test_a_server_without_a_name_is_called_by_its_id() -> None:
    clients = made()
    assert clients.server_name == clients.server_id


async def test_a_slow_client_is_counted_and_logged() -> None:
    clients = made()
    with capture_logs() as told:
        clients.gate.record_slow_consumer(clients.create_client())
    assert clients.gate.slow_consumers == 1
    assert [(event["event"], event["client"]) for event in told] == [("nats_slow_consumer", 1)]


@pytest.mark.feature("P01")
async def test_messages_of_a_client_are_counted_once_after_it_has_left() -> None:
    async with NatsSite() as opened:
        clients = opened.server.clients
        talk = await opened.connect()
        await talk.answer(b"SUB a 1\r\nPUB a 5\r\nhello\r\nPUB a 5\r\nhello\r\n")
        (client,) = clients.open.values()
        assert (client.in_messages, client.out_messages) == (2, 2)
        assert client.in_bytes == 10
        await talk.end()

        async def gone() -> bool:
            return not clients.open

        await eventually(gone)
        assert (clients.in_messages, clients.out_messages) == (2, 2)
        assert clients.in_bytes == 10
        assert clients.total == 1
