"""Binds the listening sockets of every protocol, so that errors name the address and the flag."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from penstock.config import LOCALHOST, Address, is_loopback, unmapped
from penstock.model.errors import StartRefused

BACKLOG_CONNECTIONS: Final = 1024
FREE_PORT_ATTEMPTS: Final = 20
"""How often a free port is chosen that another of the listener's addresses then has in use."""
ALL_INTERFACES: Final = ""
EVERY_FAMILY: Final = {LOCALHOST: ("127.0.0.1", "::1"), ALL_INTERFACES: ("0.0.0.0", "::")}  # noqa: S104
"""Hosts that mean one address of IPv4 and one of IPv6; one that the machine lacks is left out."""
_MISSING: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Listener:
    """Listening sockets, closed together. Connections wait in their backlogs until accepted."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.sockets = list(sockets)
        self.addresses = [Address(*sock.getsockname()[:2]) for sock in sockets]
        """Where each socket listens, with the port that was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


class _FreePortTaken(Exception):
    """The port that one address got is in use on another address of the same listener."""


def listen(addresses: Iterable[Address], flag: str, *, anywhere: bool = False) -> Listener:
    """Listen on every address; on loopback addresses only, unless `anywhere` is set.

    A name means all addresses that it resolves to. Addresses with port 0 share one free port.
    Raises StartRefused and then holds no socket.
    """
    targets: dict[Address, bool] = {}
    for address in addresses:
        for ip in _ips(address, flag, anywhere):
            target = Address(ip, address.port)
            required = address.host.lower() not in EVERY_FAMILY
            targets[target] = targets.get(target, False) or required
    for _ in range(FREE_PORT_ATTEMPTS):
        try:
            return Listener(_bound(targets, flag))
        except _FreePortTaken:
            continue
    shown = ", ".join(map(str, targets))
    raise StartRefused(f"no port is free on all of {shown}; choose another with {flag} HOST:PORT")


def _ips(address: Address, flag: str, anywhere: bool) -> Sequence[str]:
    try:
        ips = EVERY_FAMILY.get(address.host.lower()) or _resolved(address.host)
    except (OSError, ValueError) as error:
        raise _refusal(address, error, flag) from None
    if not anywhere and not all(map(is_loopback, ips)):
        raise StartRefused(
            f"cannot listen on {address}: it is reachable from other machines and Penstock has no "
            f"authentication yet; choose a loopback address with {flag}, such as 127.0.0.1"
        )
    return ips


def _resolved(host: str) -> list[str]:
    if "%" in host:
        raise ValueError("zone ids are not supported")
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(unmapped(str(target[0]))) for *_, target in found]


def _bound(targets: Mapping[Address, bool], flag: str) -> list[socket.socket]:
    """A socket for every target; one that is not required may be missing on this machine."""
    free_port = 0
    missing: StartRefused | None = None
    with ExitStack() as opened:
        sockets = []
        for target, required in targets.items():
            try:
                sock = _listening(Address(target.host, target.port or free_port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and not target.port:
                    raise _FreePortTaken from None
                missing = _refusal(target, error, flag)
                if required or error.errno not in _MISSING:
                    raise missing from None
                continue
            sockets.append(opened.enter_context(sock))
            free_port = free_port if target.port else sock.getsockname()[1]
        if not sockets and missing is not None:
            raise missing
        opened.pop_all()
    return sockets


def _listening(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restart would be refused while old connections are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Otherwise `::` would also take the port of 0.0.0.0.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(BACKLOG_CONNECTIONS)
    except OSError:
        sock.close()
        raise
    return sock


def _refusal(address: Address, error: Exception, flag: str) -> StartRefused:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    return StartRefused(
        f"cannot listen on {address} ({reason}); choose another with {flag} HOST:PORT"
    )
