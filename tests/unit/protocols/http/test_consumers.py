from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock.metadata.catalog import Catalog
from penstock.model import names
from penstock.model.resources import TopicSpec
from tests.broker.consumers import Lab, lab
from tests.broker.http import TOPICS, HttpSite
from tests.broker.storage import KEYS, World


@pytest_asyncio.fixture
async def here(world: World) -> AsyncIterator[Lab]:
    async with lab(world) as here:
        yield here


@pytest.fixture
def asking(server: HttpSite, here: Lab) -> HttpSite:
    """The application over the topics and consumers of the lab."""
    object.__setattr__(server.backend, "topics", here.topics)
    object.__setattr__(server.backend, "deliveries", here.deliveries)
    return server


async def _consumers(here: Lab, *names_: str) -> None:
    peer = await here.peer()
    await peer.stream("S", "s")
    await peer.stored("s", b"m0", b"m1", b"m2")
    for name in names_:
        await peer.consumer("S", name)
    first, _ = await peer.several(2, peer.pull("S", names_[0], b"2"))
    await peer.request(first.reply, b"+ACK")


@pytest.mark.feature("S09")
async def test_it_is_told_how_far_consumers_are(asking: HttpSite, here: Lab) -> None:
    await _consumers(here, "c")
    answer = await asking.ask("GET", f"{TOPICS}/S/consumers")
    expected = {
        "name": "c",
        "partition_id": 0,
        "kind": "pull",
        "next_offset": 3,
        "delivered_offset": 2,
        "settled_offset": 1,
        "pending": 1,
        "ack_pending": 1,
        "deliveries": 2,
        "redelivered": 0,
        "given_up": 0,
        "waiting": 0,
        "paused": False,
    }
    assert answer.plain == (200, {"consumers": [expected], "next_page_token": ""})


async def test_consumers_come_in_pages(asking: HttpSite, here: Lab) -> None:
    await _consumers(here, "b", "a", "c")
    found: list[Any] = []
    token = ""
    while True:
        page = (
            await asking.ask("GET", f"{TOPICS}/S/consumers?page_size=2&page_token={token}")
        ).body
        found.append([item["name"] for item in page["consumers"]])
        token = page["next_page_token"]
        if not token:
            break
    assert found == [["a", "b"], ["c"]]


async def test_a_topic_of_the_same_name_elsewhere_has_none_of_them(
    asking: HttpSite, here: Lab
) -> None:
    await _consumers(here, "c")
    await Catalog(here.broker.metadata, KEYS).create_namespace(names.namespace("default/other"))
    await here.topics.create_topic(TopicSpec(names.topic("default/other/S")))
    target = "/v1/tenants/default/namespaces/other/topics/S/consumers"
    assert (await asking.ask("GET", target)).body["consumers"] == []


async def test_what_cannot_be_listed_is_told(asking: HttpSite, here: Lab) -> None:
    await _consumers(here, "c")
    for target, status in {
        "S/consumers?page_token=x": 400,
        "S/consumers?page_token=x/c": 400,
        "S/consumers?page_size=x": 400,
        "S/consumers?strange=1": 400,
        "missing/consumers": 404,
    }.items():
        assert (await asking.ask("GET", f"{TOPICS}/{target}")).status == status, target


async def test_a_node_that_only_fetches_sends_the_asker_to_a_broker(
    server: HttpSite,
) -> None:
    await server.topic("t")
    assert (await server.ask("GET", f"{TOPICS}/t/consumers")).status == 421
