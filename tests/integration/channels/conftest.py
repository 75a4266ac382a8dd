"""One broker for all tests of a module, a channel and a receiver for each test."""

from collections.abc import Iterator

import pytest

from tests.integration.channels.api import Api, Channel, Receiver, serving


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("data")) as broker:
        yield Api(broker.host, broker.port)


_names = iter(range(1_000_000))


@pytest.fixture
def channel(api: Api) -> Channel:
    return Channel(api, f"c{next(_names)}")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()
