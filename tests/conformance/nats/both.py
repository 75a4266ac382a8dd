"""nats-server and Penstock, one after the other, for tests that expect the same of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.nats import OURS, THEIRS, NatsServer


@pytest.fixture(params=[THEIRS, OURS])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """A new one for every test: nats-server may find messages of a stream that was deleted."""
    running = NatsServer(tmp_path, request.param)
    running.start()
    yield running
    running.close()
