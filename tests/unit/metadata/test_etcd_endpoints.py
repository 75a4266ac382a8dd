import asyncio
from typing import Any

import grpc
import pytest

from penstock.metadata.etcd_endpoints import Endpoint, Endpoints, EtcdSettings, parse_endpoint
from penstock.metadata.interface import MetadataUnavailable
from penstock.model.errors import ConfigError

READY, FAILING = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Channel:
    """As much of a channel as choosing needs."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.ready = asyncio.Event()

    def get_state(self) -> Any:
        return self.state

    async def channel_ready(self) -> None:
        if self.state is not READY:
            await self.ready.wait()


def endpoints(*states: Any) -> tuple[Endpoints, list[Endpoint], list[Channel]]:
    made = Endpoints.__new__(Endpoints)
    channels = [Channel(state) for state in states]
    made._all = [Endpoint(f"host-{n}:1", channel) for n, channel in enumerate(channels)]
    return made, made._all, channels


@pytest.mark.parametrize(
    ("text", "target", "tls"),
    [
        ("http://127.0.0.1:2379", "127.0.0.1:2379", False),
        ("https://etcd.example:2379/", "etcd.example:2379", True),
        ("etcd:2379", "etcd:2379", False),
        ("http://[::1]:2379", "[::1]:2379", False),
    ],
)
def test_an_endpoint_is_an_address_with_or_without_tls(text: str, target: str, tls: bool) -> None:
    assert parse_endpoint(text) == (target, tls)


@pytest.mark.parametrize(
    "text",
    ["", "etcd", "http://", "http://etcd", "ftp://etcd:1", "http://u:canary@etcd:1",
     "http://etcd:99999", "http://etcd:1/path", "http://etcd:1?canary=1"],
)  # fmt: skip
def test_anything_else_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text)
    assert "canary" not in str(caught.value)


async def test_no_endpoints_are_refused() -> None:
    with pytest.raises(ConfigError):
        Endpoints(EtcdSettings(()))


def test_secrets_do_not_show() -> None:
    settings = EtcdSettings(("etcd:1",), 5.0, "user", "canary", b"canary", b"canary", b"canary")
    assert "canary" not in repr(settings)


async def test_the_first_that_is_connected_is_asked() -> None:
    some, members, _ = endpoints(FAILING, READY, READY)
    assert await some.pick(60) is members[1]


async def test_one_that_is_doubted_is_asked_only_after_the_others() -> None:
    some, members, channels = endpoints(READY, FAILING)
    members[0].doubted = True
    picking = asyncio.create_task(some.pick(60))
    await asyncio.sleep(0)
    channels[1].ready.set()
    assert await picking is members[1]


async def test_when_no_other_connects_the_doubted_one_gets_another_chance() -> None:
    some, members, _ = endpoints(READY, FAILING)
    members[0].doubted = True
    assert await some.pick(0.02) is members[0]
    assert [member.doubted for member in members] == [True, True]
    assert await some.pick(60) is members[0]
    assert [member.doubted for member in members] == [False, False]


async def test_when_none_connects_the_store_is_unavailable() -> None:
    some, _, _ = endpoints(FAILING, FAILING)
    with pytest.raises(MetadataUnavailable, match="host-0:1, host-1:1"):
        await some.pick(0.01)
