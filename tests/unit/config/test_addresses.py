import pytest

from penstock.config import (
    Address,
    AddressInvalid,
    is_loopback,
    parse_address,
    parse_addresses,
    split_address,
    unmapped,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("localhost:65535", Address("localhost", 65_535)),
        ("[::1]:80", Address("::1", 80)),
        ("[::ffff:127.0.0.1]:80", Address("::ffff:127.0.0.1", 80)),
    ],
)
def test_an_address_is_parsed_and_shown_as_it_was_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' lacks a host or a port"),
        ("8080", "'8080' lacks a host or a port"),
        (":8080", "':8080' lacks a host or a port"),
        ("localhost:", "'localhost:' lacks a host or a port"),
        ("localhost:65536", "'65536' is not a port"),
        ("localhost:-1", "'-1' is not a port"),
        ("localhost:http", "'http' is not a port"),
        ("localhost:" + "9" * 5000, f"'{'9' * 5000}' is not a port"),
        ("::1:80", "an IPv6 address is written in brackets, such as [::1]:80"),
        ("[]:80", "'' in brackets is not an IPv6 address"),
        ("[localhost]:80", "'localhost' in brackets is not an IPv6 address"),
        ("[127.0.0.1]:80", "'127.0.0.1' in brackets is not an IPv6 address"),
        ("[[::1]]:80", "'[::1]' in brackets is not an IPv6 address"),
        ("[::1:80", "the brackets of '[::1:80' do not enclose the host"),
        ("::1]:80", "the brackets of '::1]:80' do not enclose the host"),
        ("[::1]", "the brackets of '[::1]' do not enclose the host"),
        ("[::1]80", "the brackets of '[::1]80' do not enclose the host"),
        ("[::1]x:80", "the brackets of '[::1]x:80' do not enclose the host"),
        ("[fe80::1%eth0]:80", "zone ids, such as that of 'fe80::1%eth0', are not supported"),
        ("[::1%lo]:80", "zone ids, such as that of '::1%lo', are not supported"),
    ],
)
def test_a_text_that_is_no_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(AddressInvalid) as caught:
        parse_address(text)
    assert str(caught.value) == reason


def test_a_list_may_be_texts_and_have_commas() -> None:
    expected = (Address("a", 1), Address("::1", 2), Address("b", 3))
    assert parse_addresses(["a:1", "[::1]:2 , b:3"]) == expected
    with pytest.raises(AddressInvalid, match="the list is empty"):
        parse_addresses([])


def test_the_port_of_a_split_address_is_left_as_it_is_written() -> None:
    assert split_address("[::1]:-1") == ("::1", "-1")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:0.0.0.0", False),
        ("::ffff:10.0.0.1", False),
        ("128.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1", False),
        ("::2", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_is_127_8_and_1_of_ipv6(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_address_mapped_into_ipv6_is_the_ipv4_address() -> None:
    assert str(unmapped("::ffff:127.0.0.1")) == "127.0.0.1"
    assert str(unmapped("::1")) == "::1"
