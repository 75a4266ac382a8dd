"""nats-server and Penstock, one after the other, for tests that expect the same of both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.nats import OURS, THEIRS, NatsServer


@pytest.fixture(scope="module", params=[THEIRS, OURS])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NatsServer]:
    """One for all tests of a module; each uses names of its own."""
    running = NatsServer(tmp_path_factory.mktemp("nats"), request.param)
    running.start()
    yield running
    running.close()
