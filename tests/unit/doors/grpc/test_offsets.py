"""How requests of the service OffsetRegistry are read; test_remote_offsets.py has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.doors.grpc.offsets import offset_handlers
from penstock.formats.rpc import METHODS, SERVICES, message
from penstock.metadata.offsets import InObject
from penstock.model.errors import FetchInvalid, NameInvalid, PartitionInvalid, PenstockError
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset, PartitionId
from tests.unit.metadata.asked import CountingRegistry

TOPIC = "tenants/acme/namespaces/shop/topics/orders"


async def _answer(name: str, registry: CountingRegistry, /, **fields: Any) -> Any:
    return await offset_handlers(registry)[name](METHODS[name].request(**fields))


def test_every_call_of_the_service_has_its_handler() -> None:
    assert list(offset_handlers(CountingRegistry())) == list(SERVICES["OffsetRegistry"])


@pytest.mark.feature("F32")
async def test_a_request_is_asked_of_the_registry_in_our_words() -> None:
    registry = CountingRegistry()
    place = InObject(PartitionId(2), Offset(5), Offset(9), b"entry", b"")
    await registry.put(7, place)
    value = message("PartitionValue", int64_value=0)
    answer = await _answer(
        "OffsetLocation", registry, topic=TOPIC, partition_value=value, offset=7, deadline={}
    )
    assert (answer.in_object.partition_id, answer.in_object.entry) == (2, b"entry")
    assert (registry.values, registry.deadlines) == ([PartitionValue("Int64", 0)], [0])
    nothing = await _answer("OffsetLocation", registry, topic=TOPIC, offset=8)
    assert nothing.WhichOneof("location") is None
    assert registry.values[1] is None


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("OffsetLocation", {"topic": "a.b"}, NameInvalid),
        ("OffsetLocation", {"topic": TOPIC, "offset": -1}, FetchInvalid),
        ("OffsetLocation", {"topic": TOPIC, "partition_value": {}}, PartitionInvalid),
        ("GetPartition", {"topic": ""}, NameInvalid),
        ("ListPartitions", {"parent": "tenants/a"}, NameInvalid),
    ],
)
async def test_a_malformed_request_is_refused_before_anything_is_asked(
    name: str, fields: dict[str, Any], error: type[PenstockError]
) -> None:
    registry = CountingRegistry()
    with pytest.raises(error):
        await _answer(name, registry, **fields)
    assert not registry.asked
