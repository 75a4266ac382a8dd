"""The gRPC server: addresses, limits, errors and shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from penstock.config import Address
from penstock.formats.rpc import METHODS
from penstock.host.clock import Clock
from penstock.metadata import MetadataUnavailable
from penstock.metadata.remote import RemoteCalls
from penstock.metadata.remote.values import to_time
from penstock.model.errors import (
    LogReadOnly,
    NameInvalid,
    Overloaded,
    ResourceUnknown,
    StartRefused,
)
from penstock.model.units import Microseconds
from penstock.protocols.grpc.server import GrpcServer
from tests.eventually import WAIT_SECONDS, eventually
from tests.loopback import IPV6, needs_ipv6
from tests.unit.metadata.counting import FREE, Served, served

Code = grpc.StatusCode
TENANT = "tenants/acme"


@asynccontextmanager
async def _foreign(broker: Served, name: str) -> AsyncIterator[Any]:
    """The call as somebody else's client makes it."""
    method = METHODS[name]
    async with grpc.aio.insecure_channel(str(broker.server.addresses[0])) as channel:
        yield channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )


async def _failure(broker: Served, name: str, /, **fields: Any) -> tuple[Any, str]:
    async with _foreign(broker, name) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(METHODS[name].request(**fields))
    return caught.value.code(), caught.value.details()


def _poll(broker: Served) -> asyncio.Task[Any]:
    deadline = to_time(Microseconds(Clock().now_us() + 60_000_000))
    fields = {"topic": "orders", "offset": 7, "deadline": deadline}
    return asyncio.create_task(broker.calls.call("OffsetLocation", 90, **fields))


async def _running(broker: Served, calls: int) -> None:
    async def running() -> bool:
        return broker.server.running == calls

    await eventually(running)


@pytest.mark.parametrize(
    "hosts",
    [
        ["127.0.0.1"],
        pytest.param(["::1"], marks=needs_ipv6),
        ["127.0.0.1", "127.0.0.2"],
        pytest.param(["127.0.0.1", "::1"], marks=needs_ipv6),
    ],
)
async def test_port_0_takes_a_free_port_and_connections_wait_until_it_is_started(
    hosts: list[str],
) -> None:
    server = GrpcServer([Address(host, 0) for host in hosts], 1, 0)
    assert [address.host for address in server.addresses] == hosts
    assert len({address.port for address in server.addresses}) == 1
    for address in server.addresses:
        with socket.create_connection(address):
            pass
    await server.drain()


async def test_calls_are_answered_on_every_address() -> None:
    addresses = (*FREE, Address("127.0.0.2", 0), *([Address("::1", 0)] if IPV6 else []))
    async with served(addresses=addresses) as broker:
        assert len(broker.server.addresses) == len(addresses)
        for address in broker.server.addresses:
            calls = RemoteCalls(str(address))
            with pytest.raises(ResourceUnknown):
                await calls.call("GetTenant", name=TENANT)
            await calls.close()


async def test_a_port_in_use_names_the_port_and_the_flag() -> None:
    async with served() as broker:
        [address] = broker.server.addresses
        with pytest.raises(StartRefused) as caught:
            GrpcServer([address], 1, 0)
    assert str(caught.value) == (
        f"cannot listen on {address} (address already in use); choose another with --grpc HOST:PORT"
    )


async def test_a_port_is_free_again_when_the_server_has_closed() -> None:
    async with served() as broker:
        with pytest.raises(Exception, match="does not exist"):
            await broker.calls.call("GetTenant", name=TENANT)
    again = GrpcServer(broker.server.addresses, 1, 0)
    await again.drain()


async def test_an_address_that_others_can_reach_is_refused() -> None:
    with pytest.raises(StartRefused, match="choose a loopback address with --grpc"):
        GrpcServer([Address("0.0.0.0", 0)], 1, 0)


@pytest.mark.feature("F32")
async def test_a_foreign_client_gets_status_and_sentence() -> None:
    async with served() as broker:
        assert await _failure(broker, "GetTenant", name=TENANT) == (
            Code.NOT_FOUND,
            "tenant tenants/acme does not exist",
        )
        code, details = await _failure(broker, "GetTenant", name="tenants/A")
        assert code is Code.INVALID_ARGUMENT
        assert details.startswith("tenant name 'A' is not valid")


async def test_a_sentence_of_any_length_arrives() -> None:
    async with served() as broker:
        with pytest.raises(NameInvalid) as caught:
            await broker.calls.call("GetTopic", name="𝄞" * 100_000)
        assert caught.value.kind == "topic"


async def test_an_error_without_a_status_is_internal_and_logged() -> None:
    async with served() as broker:
        broker.admin.failure = LogReadOnly("t", "the disk is full")
        with capture_logs() as logs:
            code, details = await _failure(broker, "GetTenant", name=TENANT)
    assert (code, details) == (Code.INTERNAL, str(broker.admin.failure))
    assert [(log["event"], log["call"], log["reason"]) for log in logs] == [
        ("call failed", "GetTenant", details)
    ]


async def test_a_bug_is_internal_and_logged_and_keeps_its_words_to_itself() -> None:
    async with served() as broker:
        broker.admin.failure = KeyError("hunter2")
        with capture_logs() as logs:
            failure = await _failure(broker, "GetTenant", name=TENANT)
    assert failure == (
        Code.INTERNAL,
        "an internal error occurred; the broker's log has the details",
    )
    assert [(log["event"], log["log_level"]) for log in logs] == [("call failed", "error")]


async def test_an_unknown_call_is_unimplemented() -> None:
    async with (
        served() as broker,
        grpc.aio.insecure_channel(str(broker.server.addresses[0])) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/penstock.v1.Admin/Nothing")(b"")
    assert caught.value.code() is Code.UNIMPLEMENTED


@pytest.mark.feature("F17")
async def test_calls_beyond_the_limit_are_refused_by_its_name_and_later_ones_are_not() -> None:
    async with served(calls_max=2) as broker:
        broker.admin.held.clear()
        held = [asyncio.create_task(broker.calls.call("GetTenant", name=TENANT)) for _ in range(2)]
        await _running(broker, 2)
        with pytest.raises(Overloaded) as caught:
            await broker.calls.call("GetTenant", name=TENANT)
        assert (caught.value.limit, caught.value.most) == ("grpc.max_calls", 2)
        broker.admin.held.set()
        await asyncio.gather(*held, return_exceptions=True)
        with pytest.raises(Exception, match="does not exist"):
            await broker.calls.call("GetTenant", name=TENANT)
        assert broker.server.running == 0


async def test_a_drain_ends_long_polls_at_once() -> None:
    async with served(drain_seconds=3600) as broker:
        polls = [_poll(broker) for _ in range(3)]
        await _running(broker, 3)
        await broker.server.drain()
        for poll in polls:
            with pytest.raises(MetadataUnavailable, match="the broker is shutting down"):
                await poll
        assert broker.registry.waiting == 0


async def test_a_change_completes_and_counts_although_its_client_cancels_the_call() -> None:
    async with served() as broker:
        broker.admin.held.clear()
        method = METHODS["CreateTenant"]
        async with _foreign(broker, "CreateTenant") as call:
            cancelled = call(method.request(tenant_id="acme"))
            await _running(broker, 1)
            cancelled.cancel()
            assert await cancelled.code() is Code.CANCELLED
        for _ in range(10):
            # The broker hears of the cancellation meanwhile.
            await broker.calls.call("ListTenants")
        assert broker.server.running == 1
        broker.admin.held.set()
        await _running(broker, 0)
        assert (await broker.calls.call("GetTenant", name=TENANT)).name == TENANT


@pytest.mark.parametrize(
    ("failure", "events"), [(KeyError("x"), 1), (ResourceUnknown("t", "x"), 0)]
)
async def test_only_a_bug_is_logged_when_a_change_fails_after_its_client_left(
    failure: Exception, events: int
) -> None:
    async with served() as broker:
        broker.admin.held.clear()
        broker.admin.failure = failure
        with capture_logs() as logs:
            async with _foreign(broker, "CreateTenant") as call:
                cancelled = call(METHODS["CreateTenant"].request(tenant_id="acme"))
                await _running(broker, 1)
                cancelled.cancel()
                for _ in range(10):
                    # The broker hears of the cancellation meanwhile.
                    await broker.calls.call("ListTenants")
            broker.admin.held.set()
            await _running(broker, 0)
    assert [log["event"] for log in logs] == ["call failed"] * events


async def test_a_drain_ends_a_change_that_does_not_finish() -> None:
    async with served(drain_seconds=0) as broker:
        broker.admin.held.clear()
        call = asyncio.create_task(broker.calls.call("CreateTenant", tenant_id="acme"))
        await _running(broker, 1)
        await broker.server.drain()
        assert broker.server.running == 0
        with pytest.raises(MetadataUnavailable):
            await call


async def test_a_drain_lets_other_calls_finish() -> None:
    async with served(drain_seconds=3600) as broker:
        broker.admin.held.clear()
        call = asyncio.create_task(broker.calls.call("CreateTenant", tenant_id="acme"))
        await _running(broker, 1)
        drained = asyncio.create_task(broker.server.drain())
        await asyncio.sleep(0.05)
        assert not drained.done()
        broker.admin.held.set()
        assert (await call).name == TENANT
        await drained


async def test_a_drain_cuts_what_does_not_finish() -> None:
    async with served(drain_seconds=0) as broker:
        broker.admin.held.clear()
        call = asyncio.create_task(broker.calls.call("GetTenant", name=TENANT))
        await _running(broker, 1)
        await broker.server.drain()
        with pytest.raises(MetadataUnavailable):
            await call


async def test_a_server_that_was_never_started_closes() -> None:
    server = GrpcServer(FREE, 1, 0)
    async with asyncio.timeout(WAIT_SECONDS):
        await server.drain()
