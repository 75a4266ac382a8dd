"""Jobs of pull consumers, and dead letters: every row of their tables, against a real broker."""

import base64
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.channels.api import (
    Api,
    Channel,
    Consumer,
    Receiver,
    eventually,
    moment,
    serving,
)

STATES = ("QUEUED", "INFLIGHT", "DELIVERED", "DEAD")
LONG = 60
"""Seconds in flight that no test waits for."""
WAYS: dict[str, list[str]] = {
    "QUEUED": [],
    "INFLIGHT": ["INFLIGHT"],
    "DELIVERED": ["INFLIGHT", "DELIVERED"],
    "DEAD": ["INFLIGHT", "DEAD"],
}


def job_in(consumer: Consumer, state: str) -> str:
    consumer.channel.sent()
    id_ = str(consumer.queued()[0]["ID"])
    for step in WAYS[state]:
        assert consumer.move(id_, step, LONG if step == "INFLIGHT" else None).summary == (202, "")
    return id_


def killed(consumer: Consumer) -> str:
    """A job that has no retry left."""
    id_ = job_in(consumer, "DEAD")
    for _ in range(2):
        assert consumer.move(id_, "INFLIGHT", LONG).status == 202
        assert consumer.move(id_, "DEAD").status == 202
    return id_


@pytest.mark.feature("C07")
def test_queued_jobs_have_the_shape_of_the_document(channel: Channel) -> None:
    consumer = channel.consumer("one")
    channel.sent(
        "x",
        X_Broker_Message_ID="m",
        X_Broker_Message_Priority="7",
        Content_Type="text/plain",
        X_Broker_Metadata_Headers="X-A",
        X_A="1",
    )
    answer = consumer.request("GET", "/queued-jobs?limit=25")
    (job,) = answer.json["Result"]
    assert job.pop("ID")
    assert job == {
        "Priority": 7,
        "IncrementalTimeout": 0,
        "Message": {
            "MessageID": "m",
            "Payload": "x",
            "Headers": {"X-A": "1"},
            "ContentType": "text/plain",
        },
    }
    assert list(answer.json) == ["Result"]


@pytest.mark.feature("C07")
def test_jobs_are_listed_by_priority_then_age(channel: Channel) -> None:
    consumer = channel.consumer("one")
    for number, priority in enumerate([0, 5, 0, 9, 5]):
        channel.sent(f"{number}", X_Broker_Message_Priority=str(priority))
    assert consumer.payloads() == ["3", "1", "4", "0", "2"]


@pytest.mark.feature("C07")
def test_the_number_of_listed_jobs_is_limited(channel: Channel) -> None:
    consumer = channel.consumer("one")
    for number in range(110):
        channel.sent(str(number))
    sizes = {"": 25, "?limit=3": 3, "?limit=100": 100, "?limit=1000": 100, "?limit=0": 0}
    assert {query: len(consumer.queued(query)) for query in sizes} == sizes
    for query in ("-1", "x", "1.5", "", "9" * 40):
        answer = consumer.request("GET", f"/queued-jobs?limit={query}")
        assert answer.summary == (400, "invalid query parameter")
    page = consumer.request("GET", "/queued-jobs?limit=60&cursor=").json
    next_page = consumer.request("GET", f"/queued-jobs?limit=60&cursor={page['Next']}").json
    payloads = [job["Message"]["Payload"] for job in page["Result"] + next_page["Result"]]
    assert payloads == [str(number) for number in range(110)]
    end = consumer.request("GET", f"/queued-jobs?cursor={next_page['Next']}").json
    assert end == {"Result": [], "Next": next_page["Next"]}
    for forged in ("zz", "-1", "f" * 40):
        assert consumer.request("GET", f"/queued-jobs?cursor={forged}").status == 400


@pytest.mark.feature("C07")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/queued-jobs"),
        ("GET", "/job/{job}"),
        ("POST", "/job/{job}"),
        ("POST", "/job/{job}/requeue-dead-job"),
        ("POST", "/claim"),
    ],
)
def test_tokens_of_jobs_are_checked_in_order(channel: Channel, method: str, path: str) -> None:
    consumer = channel.consumer("one")
    path = path.format(job=job_in(consumer, "QUEUED"))

    def summary(place: str, **headers: str) -> tuple[int, str]:
        return channel.api.request(method, f"{place}{path}", **headers).summary

    tokens = {"X_Broker_Channel_Token": "ct"}
    assert summary("/channel/none/consumer/one") == (404, "Request resource not found")
    assert summary(consumer.path) == (403, "channel token does not match")
    unknown = f"{channel.path}/consumer/none"
    assert summary(unknown, **tokens) == (401, "consumer could not be found")
    assert summary(consumer.path, **tokens) == (403, "consumer token does not match")
    wrong = tokens | {"X_Broker_Consumer_Token": "K-one"}
    assert summary(consumer.path, **wrong) == (403, "consumer token does not match")


@pytest.mark.feature("C06", "C07")
def test_push_consumers_cannot_pull(channel: Channel, receiver: Receiver) -> None:
    pushed = channel.consumer("pushed", receiver.url("/pushed"), "push")
    pulled = channel.consumer("pulled", receiver.url("/pulled"), "pull")
    for method, path in (("GET", "/queued-jobs"), ("GET", "/job/x"), ("POST", "/job/x")):
        assert pushed.request(method, path).summary == (412, "consumer not pull based")
    for number in range(5):
        channel.sent(str(number))
    eventually(lambda: len(receiver.to("/pushed")) == 5)
    assert receiver.to("/pulled") == []
    assert len(pulled.queued()) == 5


@pytest.mark.feature("C08")
@pytest.mark.parametrize("requested", [*STATES, "inflight", "GONE", ""])
@pytest.mark.parametrize("state", STATES)
def test_every_pair_of_states_is_allowed_or_refused_as_documented(
    channel: Channel, state: str, requested: str
) -> None:
    consumer = channel.consumer("one")
    job = job_in(consumer, state)
    before = consumer.request("GET", f"/job/{job}").json
    answer = consumer.move(job, requested)
    after = consumer.request("GET", f"/job/{job}").json
    allowed = {
        ("QUEUED", "INFLIGHT"),
        ("INFLIGHT", "DELIVERED"),
        ("INFLIGHT", "DEAD"),
        ("DEAD", "INFLIGHT"),
    }
    if state == requested:
        assert (answer.summary, after) == ((202, ""), before)
    elif (state, requested) in allowed:
        assert (answer.summary, after["Status"]) == ((202, ""), requested)
        assert moment(after["StatusChangedAt"]) > moment(before["StatusChangedAt"])
    else:
        assert (answer.summary, after) == ((400, "invalid transition request"), before)


@pytest.mark.feature("C09")
@pytest.mark.parametrize("state", STATES)
def test_a_timeout_is_refused_except_with_a_transition_to_inflight(
    channel: Channel, state: str
) -> None:
    consumer = channel.consumer("one")
    job = job_in(consumer, state)
    refused = (400, "timeout provided with invalid state")
    for requested in ("QUEUED", "DELIVERED", "DEAD", "NONSENSE"):
        assert consumer.move(job, requested, 10).summary == refused
    if state == "INFLIGHT":
        assert consumer.move(job, "INFLIGHT", 10).summary == refused
        assert consumer.move(job, "DELIVERED", 0).summary == (202, "")
    elif state == "DELIVERED":
        assert consumer.move(job, "INFLIGHT", 10).status == 400
    else:
        assert consumer.move(job, "INFLIGHT", 10).summary == (202, "")


@pytest.mark.feature("C12")
@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        '"INFLIGHT"',
        '{"NextState": 5}',
        '{"NextState": ["INFLIGHT"]}',
        '{"NextState":"INFLIGHT","IncrementalTimeout":-1}',
        '{"NextState":"INFLIGHT","IncrementalTimeout":1.5}',
        '{"NextState":"INFLIGHT","IncrementalTimeout":"10"}',
        '{"NextState":"INFLIGHT","IncrementalTimeout":true}',
        '{"NextState":"INFLIGHT","IncrementalTimeout":99999999999999999999}',
        b'{"NextState":"\xff"}',
        "{}",
    ],
)
def test_a_malformed_request_changes_nothing(channel: Channel, body: str | bytes) -> None:
    consumer = channel.consumer("one")
    job = job_in(consumer, "QUEUED")
    before = consumer.request("GET", f"/job/{job}").json
    assert consumer.request("POST", f"/job/{job}", body).summary == (
        400,
        "invalid transition request",
    )
    assert consumer.request("GET", f"/job/{job}").json == before


@pytest.mark.feature("C12")
def test_member_names_may_have_any_case_and_others_are_ignored(channel: Channel) -> None:
    consumer = channel.consumer("one")
    job = job_in(consumer, "QUEUED")
    body = '{"nextstate":"INFLIGHT","INCREMENTALTIMEOUT":null,"more":{"x":[1]}}'
    assert consumer.request("POST", f"/job/{job}", body).summary == (202, "")
    assert consumer.state(job) == "INFLIGHT"


@pytest.mark.feature("C08", "C24")
def test_a_job_has_the_urls_of_its_resources(channel: Channel) -> None:
    consumer = channel.consumer("one", "http://127.0.0.1:9/cb")
    channel.sent("x", X_Broker_Message_ID="m")
    job = consumer.queued()[0]["ID"]
    shown = consumer.request("GET", f"/job/{job}").json
    assert shown.pop("StatusChangedAt")
    assert shown == {
        "ListenerEndpoint": "http://127.0.0.1:9/cb",
        "ListenerName": "one",
        "Status": "QUEUED",
        "MessageURL": f"{channel.path}/message/m",
        "ChannelURL": channel.path,
        "ConsumerURL": consumer.path,
        "ProducerURL": f"/producer/{channel.id}-p",
        "JobRequeueURL": "",
    }
    consumer.move(job, "INFLIGHT", LONG)
    consumer.move(job, "DEAD")
    requeue = consumer.request("GET", f"/job/{job}").json["JobRequeueURL"]
    assert requeue == f"{consumer.path}/job/{job}/requeue-dead-job"


@pytest.mark.feature("C16")
def test_a_job_is_accessible_to_its_consumer_only(channel: Channel) -> None:
    mine, other = channel.consumer("same"), channel.consumer("other")
    elsewhere = Channel(channel.api, f"{channel.id}-2").consumer("same")
    job = job_in(mine, "QUEUED")
    for call in (("GET", f"/job/{job}"), ("POST", f"/job/{job}", '{"NextState":"INFLIGHT"}')):
        assert other.request(*call).summary == (401, "job could not be found")
        assert elsewhere.request(*call).summary == (404, "job could not be found")
    for forged in (job[:-1] + ("0" if job[-1] != "0" else "1"), job.upper(), "x", "0" * 30):
        assert mine.request("GET", f"/job/{forged}").summary == (404, "job could not be found")
    assert mine.state(job) == "QUEUED"


def xid_seconds(text: str) -> int:
    """The time of an id as github.com/rs/xid decodes it; fails where that refuses to."""
    assert re.fullmatch("[0-9a-v]{19}[0g]", text)
    return int.from_bytes(base64.b32hexdecode(text.upper() + "====")[:4], "big")


@pytest.mark.feature("C16")
@pytest.mark.feature("C07")
def test_ids_of_jobs_and_messages_are_xids_that_sort_by_age(channel: Channel) -> None:
    first, last = (channel.consumer(name) for name in ("first", "last"))
    begun = int(time.time())
    locations = [channel.sent(str(n)) for n in range(3)]
    messages = [location.rpartition("/")[2] for location in locations]
    jobs = [job["ID"] for consumer in (first, last) for job in consumer.queued()]
    for id_ in (*messages, *jobs):
        assert begun <= xid_seconds(id_) <= time.time()
    assert messages == sorted(messages)
    assert jobs[:3] == sorted(jobs[:3])
    assert len({*messages, *jobs}) == 9
    assert [channel.api.get(location).json["ID"] for location in locations] == messages
    assert [job["Message"]["MessageID"] for job in first.queued()] == messages
    second_later = base64.b32hexencode(
        (
            int.from_bytes(base64.b32hexdecode(messages[0].upper() + "===="), "big") + (1 << 64)
        ).to_bytes(12, "big")
    )
    forged = second_later.decode().lower().strip("=")
    assert channel.api.get(f"{channel.path}/message/{forged}").status == 404


@pytest.mark.feature("C16")
def test_a_forged_id_of_another_consumer_is_refused(channel: Channel) -> None:
    mine, other = channel.consumer("mine"), channel.consumer("other")
    job = job_in(mine, "QUEUED")
    value = int.from_bytes(base64.b32hexdecode(job.upper() + "===="), "big")
    for number in range(1, 64):
        data = (value ^ number).to_bytes(12, "big")
        forged = base64.b32hexencode(data).decode().lower().strip("=")
        assert mine.move(forged, "INFLIGHT").status in (401, 404)
        assert other.move(job, "INFLIGHT").summary == (401, "job could not be found")
    assert mine.state(job) == "QUEUED"


@pytest.mark.feature("C10")
def test_a_job_that_times_out_is_queued_again_and_is_dead_in_the_end(
    channel: Channel,
) -> None:
    consumer = channel.consumer("eager")
    channel.sent()
    (job,) = consumer.queued()
    attempts = 0
    while consumer.state(job["ID"]) != "DEAD":
        if consumer.queued():
            begun = time.monotonic()
            assert consumer.move(job["ID"], "INFLIGHT").status == 202
            attempts += 1
            eventually(lambda: consumer.state(job["ID"]) != "INFLIGHT")
            assert time.monotonic() - begun >= 1.9
    assert attempts == 3
    assert consumer.move(job["ID"], "DELIVERED").status == 400
    assert len(consumer.dead()) == 1


@pytest.mark.feature("C09", "C10")
def test_a_requested_timeout_is_added(channel: Channel) -> None:
    consumer = channel.consumer("slow")
    job, begun = job_in(consumer, "QUEUED"), time.monotonic()
    consumer.move(job, "INFLIGHT", 2)
    eventually(lambda: consumer.state(job) == "QUEUED")
    assert time.monotonic() - begun >= 3.9


@pytest.mark.feature("C11", "C13")
def test_reviving_a_dead_job_raises_its_retries(channel: Channel) -> None:
    consumer = channel.consumer("one")
    job = job_in(consumer, "DEAD")
    refused = (404, "job is not dead or retry not exhausted")
    for _ in range(2):
        assert consumer.request("DELETE", f"/job/{job}").summary == refused
        consumer.move(job, "INFLIGHT", LONG)
        assert consumer.request("DELETE", f"/job/{job}").summary == refused
        consumer.move(job, "DEAD")
    assert consumer.request("DELETE", f"/job/{job}").summary == (204, "")
    assert consumer.request("GET", f"/job/{job}").summary == (404, "job could not be found")
    assert consumer.dead() == []


@pytest.mark.feature("C13")
def test_deleting_a_job_needs_its_consumer(channel: Channel) -> None:
    consumer, other = channel.consumer("one"), channel.consumer("two")
    job = killed(consumer)
    assert other.request("DELETE", f"/job/{job}").status == 404
    assert consumer.request("DELETE", "/job/none").status == 404
    none = channel.api.request(
        "DELETE", f"{channel.path}/consumer/none/job/{job}", X_Broker_Channel_Token="ct"
    )
    assert none.summary == (404, "Request resource not found")
    assert channel.api.request("DELETE", f"{consumer.path}/job/{job}").status == 403
    assert consumer.state(job) == "DEAD"


@pytest.mark.feature("C13")
def test_dead_jobs_are_queued_again_one_by_one_or_all(channel: Channel) -> None:
    consumer = channel.consumer("one")
    jobs = [job_in(consumer, "DEAD") for _ in range(3)]
    assert consumer.request("POST", f"/job/{jobs[1]}/requeue-dead-job").summary == (202, "")
    again = consumer.request("POST", f"/job/{jobs[1]}/requeue-dead-job")
    assert again.summary == (400, "job could not be found")
    assert [consumer.state(job) for job in jobs] == ["DEAD", "QUEUED", "DEAD"]
    path = f"{consumer.path}/dlq"
    assert channel.api.request("POST", path, "x", Content_Type="text/plain").status == 415
    refused = channel.api.form("POST", path, {"requeue": "wrong"})
    assert refused.summary == (400, "`requeue` form param must match consumer token")
    assert channel.api.form("POST", path, {}).status == 400
    assert channel.api.form("POST", f"{channel.path}/consumer/none/dlq", {}).status == 404
    assert channel.api.form("POST", path, {"requeue": "k-one"}).summary == (202, "")
    assert [consumer.state(job) for job in jobs] == ["QUEUED"] * 3
    assert consumer.dead() == []


@pytest.mark.feature("C13")
def test_dead_letters_are_listed_in_pages(channel: Channel) -> None:
    consumer = channel.consumer("one", "http://127.0.0.1:9/cb")
    assert channel.api.get(f"{consumer.path}/dlq").json == {"DeadJobs": [], "Pages": {}}
    jobs = [job_in(consumer, "DEAD") for _ in range(27)]
    page = channel.api.get(f"{consumer.path}/dlq").json
    newest = page["DeadJobs"][0]
    assert newest.pop("StatusChangedAt")
    assert newest.pop("MessageURL").startswith(f"{channel.path}/message/")
    assert newest == {
        "ListenerEndpoint": "http://127.0.0.1:9/cb",
        "ListenerName": "one",
        "Status": "DEAD",
        "JobRequeueURL": f"{consumer.path}/job/{jobs[-1]}/requeue-dead-job",
    }
    assert len(page["DeadJobs"]) == 25
    next_page = channel.api.get(page["Pages"]["next"]).json
    assert [job["JobRequeueURL"].split("/")[-2] for job in next_page["DeadJobs"]] == jobs[1::-1]
    back = channel.api.get(next_page["Pages"]["previous"]).json["DeadJobs"]
    assert [job["JobRequeueURL"].split("/")[-2] for job in back] == jobs[:1:-1]
    assert channel.api.get(f"{channel.path}/consumer/none/dlq").status == 404
    assert channel.api.get("/channel/none/consumer/one/dlq").status == 404


@pytest.mark.feature("C17")
def test_views_without_a_token_show_no_credentials_of_a_callback(channel: Channel) -> None:
    consumer = channel.consumer("one", "http://user:canary@127.0.0.1:9/cb")
    job = job_in(consumer, "DEAD")
    (dead,) = consumer.dead()
    (shown,) = channel.api.get(dead["MessageURL"]).json["Jobs"]
    for view in (dead, shown):
        assert view["ListenerEndpoint"] == "http://127.0.0.1:9/cb"
    own = consumer.request("GET", f"/job/{job}").json
    assert own["ListenerEndpoint"] == "http://user:canary@127.0.0.1:9/cb"


@pytest.mark.feature("C13")
def test_purging_deletes_only_dead_jobs_without_retries_left(channel: Channel) -> None:
    consumer = channel.consumer("one")
    for _ in range(3):
        killed(consumer)
    alive = job_in(consumer, "DEAD")
    assert channel.api.request("DELETE", f"{consumer.path}/dlq").status == 403
    none = channel.api.request(
        "DELETE", f"{channel.path}/consumer/none/dlq", X_Broker_Channel_Token="ct"
    )
    assert none.status == 404
    assert consumer.request("DELETE", "/dlq").summary == (200, '{"deletedCount":3}\n')
    assert consumer.request("DELETE", "/dlq").json == {"deletedCount": 0}
    assert [job["JobRequeueURL"].split("/")[-2] for job in consumer.dead()] == [alive]


# -- leases


@pytest.mark.feature("C20")
def test_one_of_twenty_concurrent_claims_wins(channel: Channel) -> None:
    consumer = channel.consumer("many")
    channel.sent()
    with ThreadPoolExecutor(20) as pool:
        answers = list(
            pool.map(
                lambda _: consumer.request("POST", f"/claim?limit=1&timeout={LONG}"), range(20)
            )
        )
    assert {answer.status for answer in answers} == {200}
    claimed = [job for answer in answers for job in answer.json["Result"]]
    assert len(claimed) == 1
    assert consumer.state(claimed[0]["ID"]) == "INFLIGHT"


@pytest.mark.feature("C08", "C20")
def test_one_of_twenty_concurrent_requests_changes_the_job(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", f"channels.rational_delay_ms={LONG}000") as broker:
        consumer = Channel(Api(broker.host, broker.port), "c").consumer("many")
        job = job_in(consumer, "QUEUED")
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: consumer.move(job, "INFLIGHT"), range(20)))
    assert Counter(answer.status for answer in answers) == {202: 20}
    assert sum("x-broker-lease" in answer.headers for answer in answers) == 1


@pytest.mark.feature("C20")
def test_a_late_ack_is_refused(channel: Channel) -> None:
    consumer = channel.consumer("late")
    channel.sent()
    (first,) = consumer.request("POST", "/claim").json["Result"]
    job = first["ID"]
    eventually(lambda: consumer.state(job) == "QUEUED")
    (second,) = consumer.request("POST", "/claim?limit=1&timeout=60").json["Result"]
    assert second["IncrementalTimeout"] == 60
    assert first["Lease"] != second["Lease"]
    late = consumer.move(job, "DELIVERED", X_Broker_Lease=first["Lease"])
    assert late.summary == (409, "lease is not held")
    assert consumer.move(job, "DELIVERED", X_Broker_Lease="zz").status == 409
    assert consumer.move(job, "DELIVERED", X_Broker_Lease=second["Lease"]).status == 202
    assert consumer.state(job) == "DELIVERED"


@pytest.mark.feature("C20")
def test_only_the_holder_of_a_lease_extends_it(channel: Channel) -> None:
    consumer = channel.consumer("long")
    channel.sent()
    (job,) = consumer.request("POST", "/claim?timeout=3").json["Result"]
    path = f"/job/{job['ID']}/extend?timeout=60"
    assert consumer.request("POST", path).status == 400
    assert consumer.request("POST", path, X_Broker_Lease="1").status == 409
    assert consumer.request("POST", path, X_Broker_Lease=job["Lease"]).status == 202
    time.sleep(5.5)
    assert consumer.state(job["ID"]) == "INFLIGHT"
    assert consumer.request("POST", "/claim?timeout=-1").status == 400


# -- delivering again


@pytest.mark.feature("C21")
def test_a_range_of_messages_is_delivered_again(channel: Channel) -> None:
    channel.sent("before the consumer")
    consumer = channel.consumer("one")
    for number in range(4):
        channel.sent(str(number))
    for job in consumer.queued():
        consumer.move(job["ID"], "INFLIGHT", LONG)
        consumer.move(job["ID"], "DELIVERED")
    assert consumer.payloads() == []
    answer = consumer.request("POST", "/replay", '{"From": 2, "To": 4}')
    assert answer.json == {"requeuedCount": 2}
    assert consumer.payloads() == ["1", "2"]
    assert consumer.request("POST", "/replay", '{"From": 0, "To": 1}').json == {"requeuedCount": 1}
    assert consumer.payloads() == ["before the consumer", "1", "2"]
    since = channel.api.get(f"{channel.path}/messages").json["Result"][0]
    received = channel.api.get(since).json["ReceivedAt"]
    assert consumer.request("POST", "/replay", f'{{"From": "{received}"}}').json == {
        "requeuedCount": 1
    }
    for body in ('{"From": -1}', '{"From": "soon"}', "[]", '{"From": 1.5}'):
        assert consumer.request("POST", "/replay", body).status == 400
