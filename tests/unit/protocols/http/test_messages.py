from typing import Any

import pytest

from penstock.model.errors import PenstockError
from penstock.model.units import Offset, PartitionId
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.messages import Messages
from penstock.protocols.http.reply import Event
from penstock.protocols.http.routes import JsonRenderer, Router
from penstock.topics import LocalOffsets
from tests.broker.http import HttpSite
from tests.unit.topics.test_source import cold

RAW = "/v1/topics/default/default/raw/messages"
EU = "partition_value=%7B%22String%22%3A%22eu%22%7D"


async def _message(server: HttpSite, target: str) -> dict[str, Any]:
    answer = await server.ask("GET", target)
    assert answer.status == 200
    return {key: value for key, value in answer.body.items() if key != "timestamp"}


async def _filled(server: HttpSite) -> None:
    await server.topic("raw")
    data = [
        {"payload": "0", "subject": "a.x"},
        {"payload": "1", "subject": "b"},
        {"payload_b64": "/w==", "subject": "a.y", "headers": [["k", "v"]]},
        {"payload": "3", "subject": "a.x"},
    ]
    await server.push({"topic": "raw", "data": data})


@pytest.mark.feature("G11")
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("offset=1", {"offset": 1, "subject": "b", "payload": "1"}),
        (
            "offset=2",
            {"offset": 2, "subject": "a.y", "headers": [["k", "v"]], "payload_b64": "/w=="},
        ),
        ("last_by_subject=a.x", {"offset": 3, "subject": "a.x", "payload": "3"}),
        ("last_by_subject=b", {"offset": 1, "subject": "b", "payload": "1"}),
        ("last_by_subject=%3E", {"offset": 3, "subject": "a.x", "payload": "3"}),
        ("next_by_subject=a.*", {"offset": 0, "subject": "a.x", "payload": "0"}),
        (
            "next_by_subject=a.*&from=1",
            {"offset": 2, "subject": "a.y", "headers": [["k", "v"]], "payload_b64": "/w=="},
        ),
        ("next_by_subject=a.x&from=1", {"offset": 3, "subject": "a.x", "payload": "3"}),
    ],
)
async def test_one_message_by_offset_and_by_subject(
    server: HttpSite, query: str, message: dict[str, Any]
) -> None:
    await _filled(server)
    assert await _message(server, f"{RAW}?{query}") == message


@pytest.mark.feature("G11")
@pytest.mark.parametrize(
    "query", ["offset=4", "last_by_subject=c", "next_by_subject=b&from=2", "last_by_subject=a"]
)
async def test_what_does_not_match_is_404(server: HttpSite, query: str) -> None:
    await _filled(server)
    answer = await server.ask("GET", f"{RAW}?{query}")
    assert answer.status == 404
    assert answer.body["message"].startswith("topic tenants/default/namespaces/default/topics/raw")


@pytest.mark.feature("G11")
async def test_deleted_messages_are_not_found(server: HttpSite) -> None:
    await _filled(server)
    log = next(iter(server.served.topics)).log
    await log.delete(PartitionId(0), [1, 3])
    for offset in (1, 3):
        assert (await server.ask("GET", f"{RAW}?offset={offset}")).status == 404
    assert (await _message(server, f"{RAW}?last_by_subject=a.x"))["offset"] == 0
    await log.purge(PartitionId(0), Offset(2))
    answer = await server.ask("GET", f"{RAW}?offset=1")
    assert answer.status == 404
    assert answer.body["message"].endswith("offset 1 is gone; the earliest is 2")


@pytest.mark.feature("G11")
async def test_rows_of_a_typed_topic_by_partition(server: HttpSite) -> None:
    await server.topic("typed", "n:int64", "region:string", partition="region")
    await server.topic("bare", "region:string", partition="region")
    value = {"String": "eu"}
    await server.push(
        {"topic": "typed", "partition": value, "data": [{"n": 1}, {"n": 2}]},
        {"topic": "bare", "partition": value, "data": [{}]},
    )
    path = "/v1/topics/default/default/typed/messages"
    assert await _message(server, f"{path}?offset=1&{EU}") == {"offset": 1, "n": 2}
    assert await _message(server, f"{path}?last_by_subject=typed&{EU}") == {"offset": 1, "n": 2}
    bare = "/v1/topics/default/default/bare/messages"
    assert await _message(server, f"{bare}?offset=0&{EU}") == {"offset": 0}
    assert (await server.ask("GET", f"{path}?offset=1")).status == 400
    other = EU.replace("eu", "us")
    assert (await server.ask("GET", f"{path}?offset=0&{other}")).status == 404
    assert (await server.ask("GET", f"{path}?last_by_subject=typed&{other}")).status == 404


@pytest.mark.feature("G11")
async def test_messages_that_are_in_objects_only_are_found(server: HttpSite) -> None:
    await _filled(server)
    await cold(server.served, next(iter(server.served.topics)))
    assert (await _message(server, f"{RAW}?offset=1"))["payload"] == "1"
    assert (await _message(server, f"{RAW}?last_by_subject=a.*"))["payload"] == "3"
    assert (await _message(server, f"{RAW}?next_by_subject=a.x&from=1"))["offset"] == 3


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "exactly one of offset, last_by_subject, next_by_subject is needed"),
        (
            "offset=1&last_by_subject=a",
            "exactly one of offset, last_by_subject, next_by_subject is needed",
        ),
        ("offset=1&from=0", "from is only valid with next_by_subject"),
        ("offset=-1", "offset must be a whole number from 0 to 9223372036854775807"),
        (
            "offset=9223372036854775808",
            "offset must be a whole number from 0 to 9223372036854775807",
        ),
        ("next_by_subject=a&from=x", "from must be a whole number"),
        ("last_by_subject=a..b", "subject filter name 'a..b' is not valid"),
        ("offset=0&partition_value=7", "partition value 7 must be an object with one kind"),
        ("offset=0&x=1", "unknown query parameter 'x'"),
    ],
)
async def test_a_question_that_is_not_right_is_refused(
    server: HttpSite, query: str, message: str
) -> None:
    await server.topic("raw")
    answer = await server.ask("GET", f"{RAW}?{query}")
    assert answer.status == 400
    assert answer.body["message"].startswith(f"bad request: {message}")


async def test_unknown_topics_are_404_and_bad_names_400(server: HttpSite) -> None:
    assert (await server.ask("GET", f"{RAW}?offset=0")).status == 404
    path = "/v1/topics/default/default/a%2Eb/messages?offset=0"
    assert (await server.ask("GET", path)).status == 400
    assert (await server.ask("GET", "/v1/topics/No/default/raw/messages?offset=0")).status == 400


async def test_a_node_that_owns_nothing_finds_by_offset_only(server: HttpSite) -> None:
    await _filled(server)
    served = server.served
    offsets = LocalOffsets(served.topics, "")
    backend = Backend(served.admin, offsets, served.source, server.fetcher, server.bodies)
    router = Router(Messages(backend).routes(), JsonRenderer())

    async def nothing() -> Event:
        raise AssertionError("there is no body")

    async def ask(query: bytes) -> int:
        scope = {"method": "GET", "path": RAW, "query_string": query}
        return (await router.handle(scope, nothing)).status

    assert await ask(b"offset=0") == 200
    with pytest.raises(PenstockError, match="this node only fetches; ask a broker by subject"):
        await ask(b"last_by_subject=b")
