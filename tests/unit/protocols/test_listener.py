import errno
import socket
from collections.abc import Callable, Iterable

import pytest

from penstock.config import Address
from penstock.model.errors import StartRefused
from penstock.protocols import listener as listener_module
from penstock.protocols.listener import ALL_INTERFACES, FREE_PORT_ATTEMPTS, Listener, listen
from tests.loopback import IPV6, needs_ipv6

BOTH = ["127.0.0.1", "::1"] if IPV6 else ["127.0.0.1"]


def _free(*hosts: str) -> Listener:
    return listen([Address(host, 0) for host in hosts], "--http")


def _refusal(addresses: Iterable[Address], flag: str = "--http") -> str:
    with pytest.raises(StartRefused) as caught:
        listen(addresses, flag)
    return str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "bound"),
    [
        (["127.0.0.1"], ["127.0.0.1"]),
        (["127.8.8.8"], ["127.8.8.8"]),
        (["127.0.0.1", "127.0.0.2", "127.0.0.3"], ["127.0.0.1", "127.0.0.2", "127.0.0.3"]),
        (["localhost"], BOTH),
        (["LOCALHOST", "127.0.0.1"], BOTH),
        (["::ffff:127.0.0.1"], ["127.0.0.1"]),
        (["127.0.0.1", "127.0.0.1"], ["127.0.0.1"]),
        pytest.param(["::1"], ["::1"], marks=needs_ipv6),
        pytest.param(["::1", "127.0.0.1"], ["::1", "127.0.0.1"], marks=needs_ipv6),
        pytest.param(["0:0:0:0:0:0:0:1", "::1"], ["::1"], marks=needs_ipv6),
    ],
)
def test_port_0_takes_one_free_port_that_accepts_connections_on_every_address(
    hosts: list[str], bound: list[str]
) -> None:
    with _free(*hosts) as listener:
        assert [address.host for address in listener.addresses] == bound
        [port] = {address.port for address in listener.addresses}
        assert port > 0
        for address in listener.addresses:
            with socket.create_connection(address):
                pass
    for address in listener.addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


def test_addresses_with_ports_and_with_port_0_may_be_mixed() -> None:
    with _free("127.0.0.1") as other:
        [taken] = other.addresses
    with listen([taken, Address("127.0.0.2", 0), Address("127.0.0.3", 0)], "--http") as listener:
        first, second, third = listener.addresses
        assert first == taken
        assert second.port == third.port != taken.port


def test_a_free_port_that_another_address_has_in_use_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:
        ports = _first_ports(monkeypatch, [other.getsockname()[1]])
        with _free("127.0.0.1", "127.0.0.2") as listener:
            [port] = {address.port for address in listener.addresses}
        assert port != other.getsockname()[1]
        assert ports == []


def test_a_start_is_refused_when_no_port_is_free_on_all_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        ports = _first_ports(monkeypatch, [port] * FREE_PORT_ATTEMPTS)
        assert _refusal([Address("127.0.0.1", 0), Address("127.0.0.2", 0)]) == (
            "no port is free on all of 127.0.0.1:0, 127.0.0.2:0; choose another with "
            "--http HOST:PORT"
        )
        assert ports == []
        with socket.create_server(("127.0.0.1", port)):
            pass


def _first_ports(monkeypatch: pytest.MonkeyPatch, ports: list[int]) -> list[int]:
    """Makes port 0 of 127.0.0.1 take these ports first, each removed when it is taken."""
    bind: Callable[[Address], socket.socket] = listener_module._listening

    def chosen(address: Address) -> socket.socket:
        if address == ("127.0.0.1", 0) and ports:
            address = Address(address.host, ports.pop())
        return bind(address)

    monkeypatch.setattr(listener_module, "_listening", chosen)
    return ports


def test_a_port_in_use_names_the_address_and_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Address(*other.getsockname())
        for addresses in ([taken], [Address("127.0.0.2", taken.port), taken]):
            assert _refusal(addresses) == (
                f"cannot listen on {taken} (address already in use); "
                "choose another with --http HOST:PORT"
            )
    with listen([Address("127.0.0.2", taken.port)], "--http"):
        pass


@needs_ipv6
def test_localhost_is_refused_when_its_port_is_in_use_on_either_address() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        assert _refusal([Address("localhost", port)]).startswith(
            f"cannot listen on [::1]:{port} (address already in use)"
        )


@pytest.mark.parametrize("missing", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_localhost_is_the_loopback_addresses_that_the_machine_has(
    monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    bind = listener_module._listening

    def only_ipv4(address: Address) -> socket.socket:
        if ":" in address.host:
            raise OSError(missing, "it is missing")
        return bind(address)

    monkeypatch.setattr(listener_module, "_listening", only_ipv4)
    with _free("localhost") as listener:
        assert [address.host for address in listener.addresses] == ["127.0.0.1"]
    for hosts in (["::1"], ["localhost", "::1"], ["::1", "localhost"]):
        assert _refusal([Address(host, 0) for host in hosts]) == (
            "cannot listen on [::1]:0 (it is missing); choose another with --http HOST:PORT"
        )


def test_a_machine_without_loopback_addresses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(address: Address) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "it is missing")

    monkeypatch.setattr(listener_module, "_listening", nothing)
    assert "it is missing" in _refusal([Address("localhost", 0)])


@pytest.mark.parametrize(
    "host", ["no.such.invalid", "a" * 70 + ".invalid", "ü" * 70, "a\0b", "[::1]"]
)
def test_a_host_that_does_not_exist_is_refused(host: str) -> None:
    refusal = _refusal([Address(host, 80)])
    assert refusal.startswith(f"cannot listen on {Address(host, 80)} (")
    assert refusal.endswith("; choose another with --http HOST:PORT")


def test_a_zone_id_is_refused() -> None:
    assert _refusal([Address("fe80::1%lo", 80)], "--addr") == (
        "cannot listen on [fe80::1%lo]:80 (zone ids are not supported); "
        "choose another with --addr HOST:PORT"
    )


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", "192.0.2.1", "::", "::ffff:0.0.0.0", "2001:db8::1", ""]
)
def test_an_address_that_others_can_reach_is_refused(host: str) -> None:
    address = Address(host, 0)
    for addresses in ([address], [Address("127.0.0.1", 0), address]):
        assert _refusal(addresses, "--nats") == (
            f"cannot listen on {address}: it is reachable from other machines and Penstock has no "
            "authentication yet; choose a loopback address with --nats, such as 127.0.0.1"
        )


def test_all_interfaces_are_those_of_both_families() -> None:
    with listen([Address(ALL_INTERFACES, 0)], "-a", anywhere=True) as listener:
        hosts = [address.host for address in listener.addresses]
        [port] = {address.port for address in listener.addresses}
        for host in BOTH:
            with socket.create_connection((host, port)):
                pass
    assert hosts == (["0.0.0.0", "::"] if IPV6 else ["0.0.0.0"])


def test_a_port_is_free_again_as_soon_as_its_connections_are_closed() -> None:
    with _free("127.0.0.1") as listener:
        [sock] = listener.sockets
        sock.setblocking(True)
        with socket.create_connection(listener.addresses[0]) as client:
            # The side that closes first is the one whose port stays in TIME_WAIT.
            sock.accept()[0].close()
            assert client.recv(1) == b""
    with listen(listener.addresses, "--http"):
        pass
