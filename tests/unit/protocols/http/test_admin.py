from typing import Any

import pytest

from tests.broker.http import TOPICS, HttpSite

TENANTS = "/v1/tenants"


def _without_time(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _without_time(value) for key, value in body.items() if key != "created"}
    return [_without_time(item) for item in body] if isinstance(body, list) else body


@pytest.mark.feature("F27")
async def test_tenants_and_namespaces_are_made_shown_listed_and_deleted(
    server: HttpSite,
) -> None:
    made = await server.ask("POST", TENANTS, {"tenant": "acme"})
    assert (made.status, _without_time(made.body)) == (201, {"name": "tenants/acme"})
    assert made.body["created"].endswith("Z")
    spaces = f"{TENANTS}/acme/namespaces"
    space = await server.ask("POST", spaces, {"namespace": "prod"})
    full = {"name": "tenants/acme/namespaces/prod", "store": ""}
    assert (space.status, _without_time(space.body)) == (201, full)
    assert (await server.ask("GET", f"{TENANTS}/acme")).plain == (200, made.body)
    assert (await server.ask("GET", f"{spaces}/prod")).plain == (200, space.body)
    listed = await server.ask("GET", TENANTS)
    assert [item["name"] for item in listed.body["tenants"]] == ["tenants/acme", "tenants/default"]
    assert (await server.ask("GET", spaces)).body == {
        "namespaces": [space.body],
        "next_page_token": "",
    }
    assert (await server.ask("DELETE", f"{TENANTS}/acme")).status == 409
    gone = await server.ask("DELETE", f"{spaces}/prod")
    assert gone.plain == (204, b"")
    assert not {b"content-length", b"content-type"} & gone.headers.keys()
    assert (await server.ask("DELETE", f"{TENANTS}/acme")).status == 204
    assert (await server.ask("GET", f"{TENANTS}/acme")).plain == (
        404,
        {"message": "tenant tenants/acme does not exist", "code": "tenant_not_found"},
    )


@pytest.mark.feature("F27")
async def test_lists_come_in_pages(server: HttpSite) -> None:
    for number in range(5):
        await server.topic(f"t{number}")
    first = (await server.ask("GET", f"{TOPICS}?page_size=2")).body
    second = (
        await server.ask("GET", f"{TOPICS}?page_size=2&page_token={first['next_page_token']}")
    ).body
    third = (
        await server.ask("GET", f"{TOPICS}?page_size=2&page_token={second['next_page_token']}")
    ).body
    names = [[t["name"].rpartition("/")[2] for t in p["topics"]] for p in (first, second, third)]
    assert names == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    assert third["next_page_token"] == ""


@pytest.mark.feature("F25", "F27")
async def test_a_topic_is_shown_as_it_was_made(server: HttpSite) -> None:
    body = {
        "topic": "typed\u00fc",
        "fields": ["a:i32", {"name": "b", "type": "utf8", "nullable": True}, "c:bool?"],
        "partition_column": "a",
        "durability": "memory",
        "retention": {"max_age_seconds": 1.5, "max_bytes": 10, "max_messages": 3},
    }
    made = await server.ask("POST", TOPICS, body)
    assert (made.status, _without_time(made.body)) == (
        201,
        {
            "name": "tenants/default/namespaces/default/topics/typed\u00fc",
            "fields": [
                {"name": "a", "type": "int32", "nullable": False},
                {"name": "b", "type": "string", "nullable": True},
                {"name": "c", "type": "bool", "nullable": True},
            ],
            "partition_column": "a",
            "durability": "memory",
            "retention": body["retention"],
        },
    )
    path = f"{TOPICS}/typed%C3%BC"
    assert (await server.ask("GET", path)).plain == (200, made.body)
    assert (await server.ask("GET", TOPICS)).body["topics"] == [made.body]
    assert (await server.ask("POST", TOPICS, body)).status == 409
    assert (await server.ask("DELETE", path)).status == 204
    assert (await server.ask("GET", path)).status == 404


@pytest.mark.feature("F25", "F20")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"topic": "a b"}, "bad request: invalid topic name: a b topic name 'a b' is not valid"),
        ({"topic": "a", "fields": ["x"]}, "column 'x' must be written name:type"),
        ({"topic": "a", "fields": ["x:int3"]}, "column 'x' has the unknown type 'int3'"),
        ({"topic": "a", "fields": []}, "a typed topic has 1 to 1000 columns, not 0"),
        ({"topic": "a", "fields": ["x:int8", "X:int8"]}, "column 'X' is there twice"),
        ({"topic": "a", "fields": ["__x:int8"]}, "column '__x': names that start with '__'"),
        ({"topic": "a", "fields": ["offset:int8"]}, "column 'offset': this name belongs to"),
        ({"topic": "a", "partition_column": "x"}, "there is no column 'x' to partition by"),
        (
            {"topic": "a", "fields": ["x:float64"], "partition_column": "x"},
            "a topic cannot be partitioned by column 'x' of type double",
        ),
        ({"topic": "a", "durability": "none"}, "bad request: Invalid enum value 'none'"),
        ({"topic": "a", "extra": 1}, "bad request: Object contains unknown field `extra`"),
        ({"topic": "a", "retention": {"max_bytes": 0}}, "bad request: Expected `int` >= 1"),
        (
            {"topic": "a", "retention": {"max_age_seconds": 1e308}},
            "bad request: Expected `float` <= 3153600000",
        ),
        (b"{", "bad request: Input data was truncated"),
    ],
)
async def test_a_topic_that_breaks_the_rules_is_not_made(
    server: HttpSite, body: Any, message: str
) -> None:
    status, told = (await server.ask("POST", TOPICS, body)).plain
    assert status == 400
    assert told["message"].startswith(message)
    assert (await server.ask("GET", TOPICS)).body["topics"] == []


@pytest.mark.feature("F27")
async def test_what_has_no_parent_is_404(server: HttpSite) -> None:
    nowhere = "/v1/tenants/default/namespaces/no"
    assert (await server.ask("POST", f"{nowhere}/topics", {"topic": "a"})).status == 404
    assert (await server.ask("GET", f"{nowhere}/topics")).status == 404
    assert (await server.ask("POST", "/v1/tenants/no/namespaces", {"namespace": "a"})).status == 404
    assert (await server.ask("GET", "/v1/tenants/No")).status == 400
    assert (await server.ask("GET", f"{TENANTS}?page_size=x")).plain == (
        400,
        {
            "message": "bad request: page_size must be a whole number from 1 to 1000",
            "code": "bad_request",
        },
    )


@pytest.mark.feature("F26")
async def test_partitions_are_listed_and_found_by_value(server: HttpSite) -> None:
    await server.topic("typed", "n:int64", "k:int64", partition="k")
    for key in (7, -1):
        batch = {"topic": "typed", "partition": {"Int64": key}, "data": [{"n": 1}, {"n": 2}]}
        await server.push(batch)
    path = f"{TOPICS}/typed/partitions"
    facts = {"start_offset": 0, "next_offset": 2, "messages": 2}
    seven = {"partition_value": {"Int64": 7}, "partition_id": 0, **facts}
    other = {"partition_value": {"Int64": -1}, "partition_id": 1, **facts}
    assert (await server.ask("GET", path)).plain == (
        200,
        {"partitions": [seven, other], "next_page_token": ""},
    )
    first = (await server.ask("GET", f"{path}?page_size=1")).body
    assert first["partitions"] == [seven]
    token = first["next_page_token"]
    assert (await server.ask("GET", f"{path}?page_token={token}")).body["partitions"] == [other]
    found = await server.ask("GET", f"{path}?partition_value=%7B%22Int64%22%3A7%7D")
    assert found.plain == (200, {"partitions": [seven], "next_page_token": ""})
    none = await server.ask("GET", f"{path}?partition_value=%7B%22Int64%22%3A8%7D")
    assert none.body["partitions"][0]["partition_id"] == -1
    assert (await server.ask("GET", f"{path}?partition_value=x")).status == 400
    assert (await server.ask("GET", f"{path}?page_token=x")).status == 400
