"""What every test here leaves as it found it."""

from collections.abc import Iterator

import pytest

from penstock.spark import reading


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    """Connections of workers live as long as their process; here, as long as a test."""
    yield
    for client in reading._clients.values():
        client.close()
    reading._clients.clear()
