"""Seeds in the configuration."""

import pytest
from structlog.testing import capture_logs

from penstock.delivery.channels.seed import SeedEndpoint, is_absolute, parse_seed
from penstock.model.errors import ConfigError

pytestmark = pytest.mark.feature("C02")


def test_a_seed_is_parsed() -> None:
    seed = parse_seed(
        """
        producers: {p: {name: P, token: t}, q: {}}
        channels: {007: {token: ct}}
        consumers: {007: {k: {callback_url: "http://a/", type: pull, token: kt, name: K}}}
        """
    )
    assert seed is not None
    assert seed.producers == {"p": ("P", "t"), "q": ("", "")}
    assert seed.channels == {"007": ("", "ct")}
    assert seed.endpoints == [SeedEndpoint("007", "k", "K", "kt", "http://a/", "pull")]


def test_an_empty_seed_is_none() -> None:
    assert parse_seed("  \n") is None


@pytest.mark.parametrize("kind", ["Pull", "both", "webhook"])
def test_an_endpoint_of_an_unknown_type_is_skipped_and_logged(kind: str) -> None:
    with capture_logs() as logs:
        seed = parse_seed(
            "channels: {c: {}}\n"
            f'consumers: {{c: {{k: {{callback_url: "http://a/", type: {kind}}}}}}}'
        )
    assert seed is not None
    assert seed.endpoints == []
    assert [(line["event"], line["consumer"]) for line in logs] == [("seed_skipped", "k")]
    assert kind in logs[0]["reason"]


@pytest.mark.parametrize("text", ["[]", "x", "channels: 5", "{nonsense: {}}", "{"])
def test_a_malformed_seed_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"channels\.seed"):
        parse_seed(text)


def test_equal_seeds_have_equal_digests() -> None:
    one, two, other = (parse_seed(f"channels: {{c: {{token: {t}}}}}") for t in "aab")
    assert one is not None
    assert two is not None
    assert other is not None
    assert one.digest == two.digest != other.digest


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://a", True),
        ("https://[::1]:5/x?y", True),
        ("//a", False),
        ("a/b", False),
        ("ftp://a", False),
        ("http://", False),
        ("http://a:99999", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_absolute_addresses(url: str, good: bool) -> None:
    assert is_absolute(url) is good
