"""Parses network addresses: `HOST:PORT`, `[IPv6]:PORT`, and lists of these."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

PORT_MAX: Final = 65_535
LOCALHOST: Final = "localhost"

_PORT: Final = re.compile(r"[0-9]{1,5}")


class Address(NamedTuple):
    """A host without brackets, and a port; port 0 of a listener means a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AddressInvalid(ValueError):
    """A text is not an address; the message is the reason."""


def parse_addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    """Parse a list of addresses whose items may be separated by commas; raises AddressInvalid."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not parts:
        raise AddressInvalid("the list is empty")
    return tuple(map(parse_address, parts))


def parse_address(text: str) -> Address:
    """Parse an address; raises AddressInvalid."""
    host, port = split_address(text)
    if not _PORT.fullmatch(port) or int(port) > PORT_MAX:
        raise AddressInvalid(f"{port!r} is not a port")
    return Address(host, int(port))


def split_address(text: str) -> tuple[str, str]:
    """The host without brackets and the text of the port; raises AddressInvalid."""
    host, _, port = text.rpartition(":")
    if not host or not port:
        raise AddressInvalid(f"{text!r} lacks a host or a port")
    if host[0] == "[" and host[-1] == "]":
        return _ipv6(host[1:-1]), port
    if "[" in text or "]" in text:
        raise AddressInvalid(f"the brackets of {text!r} do not enclose the host")
    if ":" in host:
        raise AddressInvalid(f"an IPv6 address is written in brackets, such as [::1]:{port}")
    return host, port


def is_loopback(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address; names are not resolved."""
    try:
        ip = unmapped(host)
    except ValueError:
        return host.lower() == LOCALHOST
    return ip.is_loopback


def unmapped(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address within an IPv4-mapped IPv6 address, or the address itself.

    Raises ValueError.
    """
    address = ipaddress.ip_address(ip)
    return getattr(address, "ipv4_mapped", None) or address


def _ipv6(host: str) -> str:
    if "%" in host:
        raise AddressInvalid(f"zone ids, such as that of {host!r}, are not supported")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise AddressInvalid(f"{host!r} in brackets is not an IPv6 address") from None
    return host
