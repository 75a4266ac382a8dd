"""Where deliveries may go: which addresses are open to a callback.

What is judged is the address that a connection is made to, at the moment it is made: names,
numbers that pass for addresses, and names that resolve to something else the next time all end
there. An address that wraps another one (IPv4 in IPv6, tunnels) is as good as what it wraps.
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
"""Closed whatever else is said of them: some of these count as global."""

_NAT64: Final = IPv6Network("64:ff9b::/96")


class Addresses:
    """The rule; `allowed` networks are open in any case, loopback if `loopback` says so."""

    def __init__(self, allowed: Iterable[str] = (), loopback: bool = False) -> None:
        """Raises ValueError when a network is not written `address/bits`."""
        self._allowed = [ip_network(text, strict=False) for text in allowed]
        self._loopback = loopback

    def open(self, host: str) -> bool:
        """Whether a connection to this address, not name, may be made."""
        address = ip_address(host.partition("%")[0])
        if self._named(address):
            return True
        inside = _inside(address)
        # What a tunnel calls loopback is its other end's, not ours.
        tunnel = inside is not address and getattr(address, "ipv4_mapped", None) is None
        return self._good(inside) and not (tunnel and inside.is_loopback)

    def _good(self, address: Address) -> bool:
        if self._named(address):
            return True
        if address.is_loopback:
            return self._loopback
        closed = any(
            address in network for network in _CLOSED if network.version == address.version
        )
        return address.is_global and not address.is_multicast and not closed

    def _named(self, address: Address) -> bool:
        return any(address in network for network in self._allowed)


def _inside(address: Address) -> Address:
    """The IPv4 address that one of IPv6 is another way to write, or leads to; else itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
