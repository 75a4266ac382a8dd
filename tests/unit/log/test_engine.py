import dataclasses

import pytest

from penstock.model.names import TopicName
from tests.unit.log.conftest import TOPIC, OpenLogs


async def test_all_logs_of_a_broker_share_one_engine_that_does_not_change(logs: OpenLogs) -> None:
    opened = await logs()
    one, other = await opened.create(TOPIC), await opened.create(TopicName("t", "n", "x"))
    engine = one._engine
    assert engine is other._engine
    assert engine.cache is opened.cache
    with pytest.raises(dataclasses.FrozenInstanceError):
        engine.settings = engine.settings  # type: ignore[misc]
