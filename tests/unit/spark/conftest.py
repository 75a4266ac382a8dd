"""Fixtures of all tests of the Spark package."""

from collections.abc import Iterator

import pytest

from penstock.spark import planning


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    """Close the connections that workers keep as long as their process lives."""
    yield
    for client in planning._clients.values():
        client.close()
    planning._clients.clear()
