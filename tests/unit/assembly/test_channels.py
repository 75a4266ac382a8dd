"""Building channels from a configuration."""

import pytest

from penstock.assembly.channels import channel_gateway, channel_settings
from penstock.config import load
from penstock.model.errors import ConfigError
from penstock.protocols.http.body import Bodies

BODIES = Bodies(1, 1)


def settings(*overrides: str) -> object:
    return channel_settings(load(None, {}, overrides).config)


def test_channel_settings_have_the_defaults_of_the_configuration() -> None:
    made = channel_settings(load(None, {}, []).config)
    assert made.rules == (5, 32_250_000)
    assert made.backoff_seconds == (5.0, 30.0, 60.0)
    assert made.workers == 200
    assert made.loopback


@pytest.mark.feature("C19")
def test_callbacks_may_reach_loopback_only_if_the_broker_listens_on_loopback_only() -> None:
    for address, loopback in (
        ("localhost:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("127.0.0.1:1,[::1]:1", True),
        ("127.0.0.1:1,10.0.0.1:1", False),
        ("10.0.0.1:1", False),
    ):
        for server in ("http", "grpc", "nats"):
            config = load(None, {}, [f"{server}.listen={address}"]).config
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
def test_invalid_channel_settings_are_refused_by_name(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0].replace(".", r"\.")):
        settings(override)


def test_there_is_a_gateway_if_it_has_secrets() -> None:
    assert channel_gateway(load(None, {}, []).config, BODIES) is None
    assert (
        channel_gateway(load(None, {}, ["channels.gateway.secrets=a2V5"]).config, BODIES)
        is not None
    )
    with pytest.raises(ConfigError, match=r"channels\.gateway\.secrets"):
        channel_gateway(load(None, {}, ["channels.gateway.secrets=%"]).config, BODIES)
