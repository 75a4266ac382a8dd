"""Producers, channels and consumers: every row of their tables, against a real broker."""

import base64
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote_plus

import pytest

from tests.integration.channels.api import Api, Channel

UNSINCE = "Bad Request: Update is missing `If-Unmodified-Since` header "
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
pytestmark = pytest.mark.feature("C01")


def test_a_producer_is_created_shown_and_changed(api: Api) -> None:
    created = api.put("/producer/p1", {"token": "t1", "name": "P One"})
    assert created.headers["content-type"] == "application/json"
    assert created.body.endswith(b"}\n")
    assert list(created.json) == ["ID", "Name", "Token", "ChangedAt"]
    assert (created.json["ID"], created.json["Name"], created.json["Token"]) == (
        "p1",
        "P One",
        "t1",
    )
    assert RFC3339.fullmatch(created.json["ChangedAt"])
    shown = api.get("/producer/p1")
    assert shown.json == created.json
    since = shown.headers["last-modified"]
    changed = api.put("/producer/p1", {"token": "t2"}, If_Unmodified_Since=since)
    assert (changed.json["Name"], changed.json["Token"]) == ("p1", "t2")


def test_omitted_fields_have_defaults(api: Api) -> None:
    created = api.put("/producer/p2").json
    assert created["Name"] == "p2"
    assert re.fullmatch("[a-zA-Z0-9]{12}", created["Token"])
    since = api.get("/producer/p2").headers["last-modified"]
    assert api.put("/producer/p2", If_Unmodified_Since=since).json["Token"] != created["Token"]


def test_names_are_escaped_as_in_html(api: Api) -> None:
    answer = api.put("/producer/p3", {"name": "<b>&"})
    assert b'"Name":"\\u003cb\\u003e\\u0026"' in answer.body


@pytest.mark.parametrize(
    "path", ["/producer/x", "/channel/x", "/channel/{channel}/consumer/x"], ids=str
)
def test_only_forms_are_accepted(api: Api, channel: Channel, path: str) -> None:
    path = path.format(channel=channel.id)
    for kind in ("application/json", "text/plain", ""):
        answer = api.request("PUT", path, "token=t", Content_Type=kind)
        assert answer.summary == (415, "Media type not supported")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    good = api.request(
        "PUT",
        path,
        "callbackUrl=http://a/",
        Content_Type="application/x-www-form-urlencoded; charset=utf-8",
    )
    assert good.status == 200


@pytest.mark.parametrize("path", ["/producer/y", "/channel/y", "/channel/{channel}/consumer/y"])
def test_an_update_must_name_the_version_it_replaces(api: Api, channel: Channel, path: str) -> None:
    path, fields = path.format(channel=channel.id), {"callbackUrl": "http://a/", "token": "one"}
    created = api.put(path, fields)
    assert api.form("PUT", path, fields).summary == (400, UNSINCE)
    stale = api.form("PUT", path, fields, If_Unmodified_Since="Mon, 02 Jan 2006 15:04:05 GMT")
    assert stale.status == 412
    assert "Media type" not in stale.text
    assert api.get(path).json == created.json
    since = created.headers["last-modified"]
    assert (
        api.put(path, {**fields, "token": "two"}, If_Unmodified_Since=since).json["Token"] == "two"
    )


def test_one_of_concurrent_updates_wins(api: Api) -> None:
    tag = api.put("/producer/race", {"token": "0"}).headers["etag"]
    with ThreadPoolExecutor(8) as pool:
        statuses = pool.map(
            lambda n: api.form("PUT", "/producer/race", {"token": str(n)}, If_Match=tag).status,
            range(8),
        )
        assert sorted(statuses) == [200] + [412] * 7


def test_consumers_may_be_created_concurrently(api: Api, channel: Channel) -> None:
    path, fields = f"{channel.path}/consumer/", {"callbackUrl": "http://a/"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: api.form("PUT", f"{path}n{n}", fields), range(16)))
    assert [answer.status for answer in answers] == [200] * 16
    assert len(api.get(f"{channel.path}/consumers").json["Result"]) == 16


def test_unknown_resources_are_not_found(api: Api, channel: Channel) -> None:
    for path in ("/producer/none", "/channel/none", "/channel/none/consumers"):
        assert api.get(path).summary == (404, "Request resource not found")
    for path in ("/channel/none/consumer/x", f"{channel.path}/consumer/none"):
        assert api.get(path).summary == (404, "Request resource not found")
    put = api.form("PUT", "/channel/none/consumer/x", {"callbackUrl": "http://a/"})
    assert put.summary == (404, "Request resource not found")


def test_a_channel_has_the_urls_of_its_parts(api: Api) -> None:
    created = api.put("/channel/links", {"token": "t", "name": "L"}).json
    changed = created.pop("ChangedAt")
    assert RFC3339.fullmatch(changed)
    assert created == {
        "ID": "links",
        "Name": "L",
        "Token": "t",
        "ConsumersURL": "/channel/links/consumers",
        "MessagesURL": "/channel/links/messages",
        "BroadcastURL": "/channel/links/broadcast",
        "MessagesStatusURL": "/channel/links/messages-status",
    }


def test_a_channel_is_a_topic_so_its_name_must_be_one(api: Api) -> None:
    for name in ("a.b", "a*", "a%20b", "a%2Fb", "%01"):
        answer = api.form("PUT", f"/channel/{name}", {})
        assert answer.status == 400, name
        assert "name" in answer.text
    for long in ("/producer/", "/channel/"):
        assert api.form("PUT", long + "x" * 256, {}).status == 400


@pytest.mark.feature("C02")
def test_a_consumer_is_a_push_consumer_by_default(api: Api, channel: Channel) -> None:
    path, url = f"{channel.path}/consumer/", "http://h:1/a?b=c"
    for id_, kind, shown in (("a", "", "push"), ("b", "push", "push"), ("c", "pull", "pull")):
        fields = {"token": "k", "callbackUrl": url, "type": kind}
        created = api.put(path + id_, fields).json
        del created["ChangedAt"]
        assert created == {
            "ID": id_,
            "Name": id_,
            "Token": "k",
            "CallbackURL": url,
            "DeadLetterQueueURL": f"{channel.path}/consumer/{id_}/dlq",
            "Type": shown,
        }
    assert api.put(path + "d", {"callbackUrl": url}).json["Type"] == "push"
    for kind in ("PULL", "both", " "):
        answer = api.form("PUT", path + "e", {"callbackUrl": url, "type": kind})
        assert answer.status == 400
        assert "type" in answer.text
    assert api.get(path + "e").status == 404
    since = api.get(path + "a").headers["last-modified"]
    changed = {"token": "k", "callbackUrl": url, "type": "pull"}
    assert api.put(path + "a", changed, If_Unmodified_Since=since).json["Type"] == "pull"


def test_a_callback_must_be_absolute_for_both_types(api: Api, channel: Channel) -> None:
    for kind in ("push", "pull"):
        for url in ("", "/relative", "example.com/x", "ftp://a/", "http://", "http://a:b/"):
            fields = {"type": kind, "callbackUrl": url}
            answer = api.form("PUT", f"{channel.path}/consumer/z", fields)
            assert answer.status == 400, url
            assert "callbackUrl" in answer.text


def test_a_consumer_is_deleted_with_its_jobs(api: Api, channel: Channel) -> None:
    consumer = channel.consumer("gone")
    location = channel.sent("one")
    (job,) = consumer.queued()
    assert channel.statuses(location) == ["QUEUED"]
    path, since = consumer.path, api.get(consumer.path).headers["last-modified"]
    assert api.request("DELETE", path).summary == (400, UNSINCE)
    stale = api.request("DELETE", path, If_Unmodified_Since="Mon, 02 Jan 2006 15:04:05 GMT")
    assert stale.status == 412
    assert api.request("DELETE", path, If_Unmodified_Since=since).summary == (204, "")
    assert api.request("DELETE", path, If_Unmodified_Since=since).status == 404
    assert api.request("DELETE", "/channel/none/consumer/x").status == 404
    assert channel.statuses(location) == []
    again = channel.consumer("gone")
    assert again.queued() == []
    assert again.request("GET", f"/job/{job['ID']}").summary == (401, "job could not be found")


def test_lists_have_pages_in_both_directions(api: Api, channel: Channel) -> None:
    for number in range(60):
        channel.consumer(f"n{number:02}")
    newest_first = [f"{channel.path}/consumer/n{number:02}" for number in range(59, -1, -1)]
    path, seen = f"{channel.path}/consumers", []
    for size in (25, 25, 10, 0):
        page = api.get(path).json
        assert list(page) == ["Result", "Pages", "Links"]
        assert page["Links"] is None
        assert len(page["Result"]) == size
        seen.append(page["Result"])
        if size:
            assert sorted(page["Pages"]) == ["next", "previous"]
            previous, path = page["Pages"]["previous"], page["Pages"]["next"]
        else:
            assert page["Pages"] == {}
    assert [url for page in seen for url in page] == newest_first
    back = api.get(previous).json
    assert back["Result"] == seen[1]
    assert api.get(back["Pages"]["previous"]).json["Result"] == seen[0]


@pytest.mark.feature("C16")
def test_a_cursor_leads_to_pages_of_its_list_only(api: Api, channel: Channel) -> None:
    other = Channel(api, f"{channel.id}-other")
    other.consumer("foreign")
    consumers = [channel.consumer(f"k{n}").path for n in (1, 2)]
    first = api.get(f"{channel.path}/consumers").json["Result"]
    assert first == consumers[::-1]
    stolen = api.get(f"{other.path}/consumers").json["Pages"]["previous"].partition("=")[2]
    forged = [
        "nonsense",
        "%00",
        quote_plus(base64.b64encode(b"x' OR 1=1 --|2026-01-01T00:00:00Z").decode()),
        quote_plus(base64.b64encode(b"no bar").decode()),
        quote_plus(base64.b64encode("é|not a time".encode()).decode()),
        quote_plus(base64.b64encode(b"z|9999-99-99T99:99:99Z").decode()),
        stolen,
    ]
    for cursor in forged:
        for way in ("next", "previous"):
            page = api.get(f"{channel.path}/consumers?{way}={cursor}")
            assert page.status == 200
            assert set(page.json["Result"]) <= set(first)
    both = api.get("/producers?next=YXwyMDI2LTAxLTAxVDAwOjAwOjAwWg==&previous=YQ==")
    assert both.status == 400
    assert both.text.startswith("can not decide on pagination direction!")


@pytest.mark.feature("C16")
def test_ids_are_matched_exactly(api: Api) -> None:
    api.put("/producer/exact")
    for path in ("/producer/%25", "/producer/exac_", "/producer/EXACT", "/channel/%25"):
        assert api.get(path).status == 404


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/job/{job}", "application/json"),
        ("/job/{job}/requeue-dead-job", "application/json"),
        ("/job/{job}/extend", "application/json"),
        ("/claim", "application/json"),
        ("/replay", "application/json"),
        ("/disable", "application/json"),
        ("/enable", "application/json"),
        ("/rotate-secret", "text/plain"),
    ],
)
def test_requests_of_a_consumer_accept_one_content_type(
    channel: Channel, path: str, known: str
) -> None:
    consumer = channel.consumer("one")
    channel.sent()
    path = path.format(job=consumer.queued()[0]["ID"])
    kinds = {"application/json", "text/plain", "application/x-www-form-urlencoded"} - {known}
    for kind in kinds:
        answer = consumer.request("POST", path, "{}", Content_Type=kind)
        assert answer.summary == (415, "Media type not supported")
    assert len(consumer.queued()) == 1
    for headers in ({"Content_Type": f"{known}; charset=utf-8"}, {}):
        assert consumer.request("POST", path, "", **headers).status != 415


def test_the_replies_to_other_methods_and_paths(api: Api) -> None:
    refused = api.request("POST", "/producer/x")
    assert refused.summary == (405, "Method Not Allowed\n")
    assert refused.headers["allow"] == "GET, OPTIONS, PUT"
    assert api.request("HEAD", "/producers").status == 405
    options = api.request("OPTIONS", "/channel/x/consumer/y")
    assert options.summary == (200, "")
    assert options.headers["allow"] == "DELETE, GET, OPTIONS, PUT"
    nothing = api.get("/channel/x/nothing")
    assert nothing.summary == (404, "404 page not found\n")
    assert nothing.headers["content-type"] == "text/plain; charset=utf-8"
    for path in ("/producers/", "/Producers", "/PRODUCERS/"):
        moved = api.get(path)
        assert (moved.status, moved.headers["location"]) == (301, "/producers")
    moved = api.request("PUT", "/producer/X/")
    assert (moved.status, moved.headers["location"]) == (307, "/producer/X")


def test_a_reply_has_the_id_of_its_request(api: Api) -> None:
    assert api.get("/producers", X_Request_ID="abc").headers["x-request-id"] == "abc"
    assert api.get("/producer/none", X_Request_ID="def").headers["x-request-id"] == "def"
    generated = {api.get("/producers").headers["x-request-id"] for _ in range(3)}
    assert len(generated) == 3


def test_errors_are_problem_documents_on_request(api: Api) -> None:
    answer = api.get("/producer/none", Accept="application/problem+json")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json == {
        "type": "about:blank",
        "status": 404,
        "title": "Request resource not found",
    }
