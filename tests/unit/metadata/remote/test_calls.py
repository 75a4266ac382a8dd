"""The connection to a broker, and the errors of calls without a reply."""

from __future__ import annotations

import asyncio
import socket

import pytest

from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.remote.calls import RemoteCalls
from penstock.model.errors import LogReadOnly, ResourceUnknown
from tests.eventually import eventually
from tests.unit.metadata.counting import served

TENANT = "tenants/acme"


async def test_the_brokers_error_is_raised_here() -> None:
    async with served() as broker:
        with pytest.raises(ResourceUnknown, match="tenant tenants/acme does not exist"):
            await broker.calls.call("GetTenant", name=TENANT)


async def test_an_unreachable_broker_is_an_error_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
    calls = RemoteCalls(address)
    with pytest.raises(MetadataUnavailable, match=rf"^the broker at {address}: .*\(unavailable\)$"):
        await calls.call("GetTenant", name=TENANT)
    assert not calls.connected
    await calls.close()


async def test_a_timeout_is_an_error_with_the_address() -> None:
    async with served() as broker:
        broker.admin.held.clear()
        with pytest.raises(MetadataUnavailable) as caught:
            await broker.calls.call("GetTenant", 0.1, name=TENANT)
        assert str(caught.value) == f"the broker at {broker.calls.address}: no answer in 0.1 s"


async def test_an_unavailable_store_of_the_broker_is_an_error_with_the_brokers_address() -> None:
    async with served() as broker:
        broker.admin.failure = MetadataUnavailable("etcd is away")
        with pytest.raises(MetadataUnavailable) as caught:
            await broker.calls.call("GetTenant", name=TENANT)
        assert str(caught.value) == f"the broker at {broker.calls.address}: etcd is away"


async def test_an_error_without_a_status_of_its_own_keeps_its_sentence() -> None:
    async with served() as broker:
        broker.admin.failure = LogReadOnly("t", "the disk is full")
        with pytest.raises(MetadataUnavailable, match=r"the disk is full \(internal\)$"):
            await broker.calls.call("GetTenant", name=TENANT)


async def test_it_is_connected_once_the_broker_answers() -> None:
    async with served() as broker:

        async def connected() -> bool:
            return broker.calls.connected

        await eventually(connected)
        await broker.server.drain()

        async def lost() -> bool:
            return not broker.calls.connected

        await eventually(lost)


async def test_closing_ends_calls_as_errors_and_not_as_cancellations() -> None:
    async with served() as broker:
        broker.admin.held.clear()
        call = asyncio.create_task(broker.calls.call("GetTenant", name=TENANT))

        async def called() -> bool:
            return broker.admin.asked["get_tenant"] == 1

        await eventually(called)
        await broker.calls.close()
        with pytest.raises(MetadataUnavailable, match="the connection was closed"):
            await call
        with pytest.raises(MetadataUnavailable, match="the connection is closed"):
            await broker.calls.call("GetTenant", name=TENANT)


async def test_a_cancelled_call_is_cancelled_at_the_broker_too() -> None:
    async with served() as broker:
        broker.admin.held.clear()
        call = asyncio.create_task(broker.calls.call("GetTenant", name=TENANT))

        async def running() -> bool:
            return broker.server.running == 1

        await eventually(running)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        async def ended() -> bool:
            return broker.server.running == 0

        await eventually(ended)
