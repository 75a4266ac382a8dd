import pytest

from penstock.formats.plan_api import StoreReply
from penstock.model import names
from penstock.topics import Plans
from tests.broker.http import TOPICS, HttpSite
from tests.broker.storage import fill, flush


@pytest.fixture
def planning(server: HttpSite) -> HttpSite:
    object.__setattr__(
        server.backend, "plans", Plans(server.served.topics, lambda name: StoreReply("fs", "there"))
    )
    return server


@pytest.mark.feature("S01")
async def test_a_plan_tells_partitions_and_objects_in_pages(planning: HttpSite) -> None:
    topic = await planning.topic("t")
    opened = planning.served.topics.get(topic.name)
    assert opened.tier is not None
    await fill(opened.log, 200)
    await flush(opened.tier)
    page = (await planning.ask("GET", f"{TOPICS}/t/plan?page_size=1")).body
    assert page["store"]["root"] == "there"
    assert page["topic"]["name"] == topic.name.full
    (partition,) = page["partitions"]
    assert (partition["hot_offset"], partition["next_offset"]) == (200, 200)
    objects = []
    while page["next_page_token"]:
        token = page["next_page_token"]
        answer = await planning.ask("GET", f"{TOPICS}/t/plan?page_size=1&page_token={token}")
        page = answer.body
        objects += page["objects"]
    assert [item["key"] for item in objects] == [e.object_id for e in opened.tier.manifest.index]
    none = (await planning.ask("GET", f"{TOPICS}/t/plan?objects=false")).body
    assert (none["objects"], len(none["partitions"])) == ([], 1)


async def test_what_cannot_be_planned_is_told(planning: HttpSite) -> None:
    await planning.topic("t")
    asked = {
        "t/plan?objects=perhaps": 400,
        "t/plan?page_token=x.1": 409,
        "t/plan?page_size=x": 400,
        "missing/plan": 404,
        "t/offsets": 400,
        "t/offsets?timestamp=-1": 400,
        "missing/offsets?timestamp=0": 404,
    }
    for target, status in asked.items():
        assert (await planning.ask("GET", f"{TOPICS}/{target}")).status == status, target


async def test_a_node_that_only_fetches_sends_readers_to_a_broker(server: HttpSite) -> None:
    await server.topic("t")
    object.__setattr__(server.backend, "topics", None)
    object.__setattr__(server.backend, "plans", None)
    assert (await server.ask("GET", f"{TOPICS}/t/plan")).status == 421
    assert (await server.ask("GET", f"{TOPICS}/t/offsets?timestamp=0")).status == 421


async def test_offsets_are_found_by_time_in_pages(server: HttpSite) -> None:
    await server.topic("r", "region:string", partition="region")
    for name in ("eu", "us", "as"):
        rows = {"topic": "r", "partition": {"String": name}, "data": [{}, {}]}
        assert (await server.push(rows)).status == 200
    opened = server.served.topics.get(names.topic("r"))
    now = opened.log.state.last_timestamp
    early = (await server.ask("GET", f"{TOPICS}/r/offsets?timestamp=0&page_size=2")).body
    token = early["next_page_token"]
    target = f"{TOPICS}/r/offsets?timestamp=0&page_size=2&page_token={token}"
    rest = (await server.ask("GET", target)).body
    told = [(item["partition_id"], item["offset"]) for item in early["offsets"] + rest["offsets"]]
    assert (told, rest["next_page_token"]) == ([(0, 0), (1, 0), (2, 0)], "")
    late = (await server.ask("GET", f"{TOPICS}/r/offsets?timestamp={now + 1}")).body
    assert [item["offset"] for item in late["offsets"]] == [2, 2, 2]
