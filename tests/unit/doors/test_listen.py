import socket

import pytest

from penstock.config import Address
from penstock.doors.listen import bound_address, listen
from penstock.model.errors import StartRefused


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.8.8"])
def test_port_0_takes_a_free_port_that_accepts_connections(host: str) -> None:
    with listen(Address(host, 0), "--http") as sock:
        address = bound_address(Address(host, 0), sock)
        assert address.host == host
        assert address.port > 0
        with socket.create_connection(address):
            pass


def test_a_port_in_use_names_the_port_and_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartRefused) as caught:
            listen(Address("127.0.0.1", port), "--http")
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port} (address already in use); "
        "choose another with --http HOST:PORT"
    )


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        StartRefused, match=r"^cannot listen on no\.such\.invalid:80 \(.+\); choose"
    ):
        listen(Address("no.such.invalid", 80), "--http")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "2001:db8::1"])
def test_an_address_that_others_can_reach_is_refused(host: str) -> None:
    address = Address(host, 0)
    with pytest.raises(StartRefused) as caught:
        listen(address, "--nats")
    assert str(caught.value) == (
        f"cannot listen on {address}: it is reachable from other machines and Penstock has no "
        "authentication yet; choose a loopback address with --nats, such as 127.0.0.1"
    )


def test_a_port_is_free_again_as_soon_as_its_connections_are_closed() -> None:
    with listen(Address("127.0.0.1", 0), "--http") as sock:
        address = bound_address(Address("127.0.0.1", 0), sock)
        sock.setblocking(True)
        with socket.create_connection(address) as client:
            # The side that closes first is the one whose port stays in TIME_WAIT.
            sock.accept()[0].close()
            assert client.recv(1) == b""
    with listen(address, "--http"):
        pass
