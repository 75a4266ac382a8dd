"""Whether this machine has an IPv6 loopback address, for tests that need one."""

import errno
import socket
from typing import Final

import pytest


def _binds_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return False
        raise
    return True


IPV6: Final = _binds_ipv6()
needs_ipv6: Final = pytest.mark.skipif(not IPV6, reason="this machine cannot bind ::1")
