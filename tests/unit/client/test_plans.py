from typing import Any

import msgspec
import pytest

from penstock.client import BrokerRefused, get_plan, link_objects, offsets_at, sweep_objects
from penstock.formats.plan_api import StagedObject
from penstock.model import names
from tests.unit.client.script import TOPIC, play, reply

NAME = names.topic("orders")
PATH = "/v1/tenants/default/namespaces/default/topics/orders"


def _page(token: str = "", **items: Any) -> Any:
    store = {"backend": "fs", "root": "/objects"}
    page = {"topic": TOPIC, "store": store, "partitions": [], "objects": [], **items}
    return reply({**page, "next_page_token": token})


def _partition(number: int) -> dict[str, Any]:
    facts = {"start_offset": 0, "next_offset": 9, "hot_offset": 5}
    return {"partition_id": number, "partition_value": None, **facts}


def test_all_pages_of_a_plan_are_read() -> None:
    pages = [_page("a.1", partitions=[_partition(0)]), _page(partitions=[_partition(1)])]
    made, asked = play(get_plan(NAME), *pages)
    assert [item.partition_id for item in made.partitions] == [0, 1]
    assert made.store is not None
    assert made.store.root == "/objects"
    assert [request.path for request in asked] == [
        f"{PATH}/plan?page_size=1000&objects=true",
        f"{PATH}/plan?page_size=1000&objects=true&page_token=a.1",
    ]


def test_only_a_plan_that_the_broker_dropped_is_read_again() -> None:
    gone = reply({"message": "gone", "code": "plan_gone"}, 409)
    pages = [_page("a.1", partitions=[_partition(0)]), gone, _page(partitions=[_partition(0)])]
    made, asked = play(get_plan(NAME, with_objects=False), *pages)
    assert len(made.partitions) == 1
    assert asked[-1].path == f"{PATH}/plan?page_size=1000&objects=false"
    with pytest.raises(BrokerRefused, match="gone"):
        play(get_plan(NAME), *[gone] * 5)
    for error in ({"message": "not here"}, {"message": "not here", "code": "topic_exists"}):
        with pytest.raises(BrokerRefused, match="not here"):
            play(get_plan(NAME), reply(error, 409))


def test_offsets_by_time_are_read_from_all_pages() -> None:
    def item(number: int) -> dict[str, Any]:
        return {"partition_id": number, "partition_value": None, "offset": number}

    first = reply({"offsets": [item(0)], "next_page_token": "1"})
    found, asked = play(offsets_at(NAME, 77), first, reply({"offsets": [item(1)]}))
    assert [item.offset for item in found] == [0, 1]
    assert asked[1].path == f"{PATH}/offsets?page_size=1000&timestamp=77&page_token=1"


def test_a_sweep_returns_how_many_objects_it_removed() -> None:
    done, (request,) = play(sweep_objects(NAME), reply({"swept": 3}))
    assert (done.swept, request.method, request.path) == (3, "POST", f"{PATH}/sweeps")
    assert (request.body, request.content_type) == (b"{}", "application/json")


def test_a_link_sends_the_staged_objects_and_waits_long() -> None:
    staged = StagedObject("k", 3, 100, 7, None, {"Int8": 1})
    answer = {"ranges": [], "repeated": True}
    done, (request,) = play(link_objects(NAME, "app", 4, [staged]), reply(answer))
    assert done.repeated
    assert (request.method, request.path) == ("POST", f"{PATH}/links")
    assert request.wait_seconds >= 60
    assert msgspec.json.decode(request.body) == {
        "app": "app",
        "epoch": 4,
        "objects": [
            {
                "key": "k",
                "rows": 3,
                "size_bytes": 100,
                "crc32c": 7,
                "etag": None,
                "partition_value": {"Int8": 1},
            }
        ],
    }
