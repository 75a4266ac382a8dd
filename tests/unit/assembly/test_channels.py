"""Channels from a configuration."""

import pytest

from penstock.assembly.channels import channel_settings, gateway
from penstock.config import load
from penstock.model.errors import ConfigError


def settings(*overrides: str) -> object:
    return channel_settings(load(None, {}, overrides).config)


def test_the_defaults_are_those_of_the_existing_broker() -> None:
    made = channel_settings(load(None, {}, []).config)
    assert made.rules == (5, 32_250_000)
    assert made.backoff_seconds == (5.0, 30.0, 60.0)
    assert made.workers == 200
    assert made.loopback


@pytest.mark.feature("C19")
def test_callbacks_to_loopback_are_open_only_while_the_broker_is_there_too() -> None:
    for address, loopback in (("localhost:1", True), ("[::1]:1", True), ("10.0.0.1:1", False)):
        for door in ("http", "grpc", "nats"):
            config = load(None, {}, [f"{door}.listen={address}"]).config
            assert channel_settings(config).loopback is loopback


@pytest.mark.parametrize(
    "override",
    [
        "channels.push.backoff_seconds=",
        "channels.push.backoff_seconds=5,x",
        "channels.push.backoff_seconds=-1",
        "channels.push.allow_networks=nonsense",
    ],
)
def test_what_cannot_be_is_refused_by_name(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0].replace(".", r"\.")):
        settings(override)


def test_a_gateway_is_there_where_it_has_secrets() -> None:
    assert gateway(load(None, {}, []).config) is None
    assert gateway(load(None, {}, ["channels.gateway.secrets=a2V5"]).config) is not None
    with pytest.raises(ConfigError, match=r"channels\.gateway\.secrets"):
        gateway(load(None, {}, ["channels.gateway.secrets=%"]).config)
