"""Decides which addresses callbacks may have.

The check applies to the address of each connection when it is opened. So it covers host names,
unusual spellings of addresses, and names that resolve to another address the next time. An address
that embeds another one (IPv4 in IPv6, tunnels) is checked as the embedded one.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_CLOSED: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/3",
            "2001::/23",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
            "fe80::/10",
            "fec0::/10",
            "ff00::/8",
        ),
    )
)
"""Always closed; `ipaddress` regards some of these as global."""

_NAT64: Final = IPv6Network("64:ff9b::/96")


class Addresses:
    """The addresses that are open: public ones, allowed networks and, if enabled, loopback."""

    def __init__(self, allowed: Iterable[str] = (), loopback: bool = False) -> None:
        """Raises ValueError if a network is not written as `address/bits`."""
        self._allowed = [ip_network(text, strict=False) for text in allowed]
        self._loopback = loopback

    def open(self, host: str) -> bool:
        """Whether callbacks may connect to an address (not a name)."""
        address = ip_address(host.partition("%")[0])
        if self._is_allowed(address):
            return True
        embedded = _embedded(address)
        # Loopback behind a tunnel is that of its other end, not of this machine.
        tunnel = embedded is not address and getattr(address, "ipv4_mapped", None) is None
        return self._is_open(embedded) and not (tunnel and embedded.is_loopback)

    def _is_open(self, address: Address) -> bool:
        if self._is_allowed(address):
            return True
        if address.is_loopback:
            return self._loopback
        closed = any(
            address in network for network in _CLOSED if network.version == address.version
        )
        return address.is_global and not address.is_multicast and not closed

    def _is_allowed(self, address: Address) -> bool:
        return any(address in network for network in self._allowed)


def _embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address embeds; else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
