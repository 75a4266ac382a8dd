"""Sockets that doors listen on: bound by us, so that what is wrong is said in our words."""

import ipaddress
import socket
from typing import Final

from penstock.config import Address
from penstock.model.errors import StartRefused

BACKLOG_CONNECTIONS: Final = 1024


def listen(address: Address, flag: str, *, anywhere: bool = False) -> socket.socket:
    """A listening socket, on a loopback address unless it may be `anywhere`.

    Raises StartRefused and then holds nothing.

    Connections wait from here on, unanswered, until a door accepts them.
    """
    try:
        resolved = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        family, _, _, _, target = resolved[0]
        if not anywhere:
            _demand_loopback(address, str(target[0]), flag)
        return _bound(family, target)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StartRefused(
            f"cannot listen on {address} ({reason}); choose another with {flag} HOST:PORT"
        ) from None


def bound_address(address: Address, sock: socket.socket) -> Address:
    """The address as it was asked for, with the port that was taken."""
    return Address(address.host, sock.getsockname()[1])


def _demand_loopback(address: Address, ip: str, flag: str) -> None:
    if not ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
        raise StartRefused(
            f"cannot listen on {address}: it is reachable from other machines and Penstock has no "
            f"authentication yet; choose a loopback address with {flag}, such as 127.0.0.1"
        )


def _bound(family: int, target: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restart would be refused while old connections are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(target)
        sock.listen(BACKLOG_CONNECTIONS)
    except OSError:
        sock.close()
        raise
    return sock
