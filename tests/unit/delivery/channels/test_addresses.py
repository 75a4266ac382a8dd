"""Which addresses are open to callbacks."""

import pytest

from penstock.delivery.channels.addresses import Addresses

pytestmark = pytest.mark.feature("C19")

CLOSED = """127.0.0.1 127.255.255.254 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1
169.254.169.254 100.64.0.1 0.0.0.0 0.1.2.3 192.0.0.8 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1
224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 192.88.99.1
::1 :: ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 2002:7f00:1:: 2002:a00:1::
2002:c0a8:101:: 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b:1::1 64:ff9b:1::808:808
2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1 fec0::1 fe80::1 fe80::1%eth0 fc00::1 fd00::1
5f00::1 ff02::1 100::1 ::ffff:0:7f00:1 ::ffff:0:a00:1 64:ff9b:2::1 1::1 3fff::1""".split()  # noqa: SIM905
OPEN = "8.8.8.8 1.1.1.1 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::".split()  # noqa: SIM905


@pytest.mark.parametrize("address", CLOSED)
def test_addresses_that_are_not_public_are_closed(address: str) -> None:
    assert not Addresses().open(address)


@pytest.mark.parametrize("address", OPEN)
def test_public_addresses_are_open(address: str) -> None:
    assert Addresses().open(address)


def test_a_setting_opens_loopback_addresses_only() -> None:
    rule = Addresses(loopback=True)
    for address in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
        assert rule.open(address)
    closed = [address for address in CLOSED if "127." not in address and address != "::1"]
    assert [address for address in closed if rule.open(address)] == []


def test_configured_networks_are_open() -> None:
    rule = Addresses(["10.1.0.0/16", "fd00::/8", "192.168.7.7"])
    assert [rule.open(a) for a in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::5", "192.168.7.7")] == [
        True
    ] * 4
    assert not any(rule.open(a) for a in ("10.2.0.1", "fe80::1", "192.168.7.8", "127.0.0.1"))
    with pytest.raises(ValueError, match="nonsense"):
        Addresses(["nonsense"])
