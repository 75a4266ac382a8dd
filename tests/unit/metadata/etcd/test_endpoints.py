import asyncio
from typing import Any

import grpc
import pytest

from penstock.metadata.etcd.endpoints import (
    EtcdEndpoint,
    EtcdEndpoints,
    EtcdSettings,
    parse_endpoint,
)
from penstock.metadata.interface import MetadataUnavailable
from penstock.model.errors import ConfigError

READY, FAILING = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Channel:
    """The part of a channel that the choice of an endpoint needs."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.ready = asyncio.Event()

    def get_state(self) -> Any:
        return self.state

    async def channel_ready(self) -> None:
        if self.state is not READY:
            await self.ready.wait()


def endpoints(*states: Any) -> tuple[EtcdEndpoints, list[EtcdEndpoint], list[Channel]]:
    chooser = EtcdEndpoints.__new__(EtcdEndpoints)
    channels = [Channel(state) for state in states]
    chooser._all = [EtcdEndpoint(f"host-{n}:1", channel) for n, channel in enumerate(channels)]
    return chooser, chooser._all, channels


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
        EtcdEndpoints(EtcdSettings(()))


def test_secrets_do_not_show() -> None:
    settings = EtcdSettings(("etcd:1",), 5.0, "user", "canary", b"canary", b"canary", b"canary")
    assert "canary" not in repr(settings)


async def test_the_first_connected_endpoint_is_called() -> None:
    chosen, members, _ = endpoints(FAILING, READY, READY)
    assert await chosen.pick(60) is members[1]


async def test_a_suspected_endpoint_is_called_only_if_no_other_is_connected() -> None:
    chosen, members, channels = endpoints(READY, FAILING)
    members[0].suspected = True
    picking = asyncio.create_task(chosen.pick(60))
    await asyncio.sleep(0)
    channels[1].ready.set()
    assert await picking is members[1]


async def test_a_suspected_endpoint_is_tried_again_if_no_other_connects() -> None:
    chosen, members, _ = endpoints(READY, FAILING)
    members[0].suspected = True
    assert await chosen.pick(0.02) is members[0]
    assert [member.suspected for member in members] == [True, True]
    assert await chosen.pick(60) is members[0]
    assert [member.suspected for member in members] == [False, False]


async def test_when_none_connects_the_store_is_unavailable() -> None:
    chosen, _, _ = endpoints(FAILING, FAILING)
    with pytest.raises(MetadataUnavailable, match="host-0:1, host-1:1"):
        await chosen.pick(0.01)
