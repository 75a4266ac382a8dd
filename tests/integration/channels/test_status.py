"""Status pages, metrics and seeds; none shows a secret."""

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path

import pytest

from tests.integration.channels.api import Api, Channel, Receiver, eventually, moment, serving

SEED = """
channels:
  seed:
    producers:
      p: {name: Producer, token: canary-producer}
    channels:
      c: {name: Channel, token: canary-channel}
    consumers:
      c:
        pulls: {token: canary-pulls, callback_url: "http://127.0.0.1:9/", type: pull}
        empty: {token: canary-empty, callback_url: "http://127.0.0.1:9/", type: ""}
        none: {callback_url: "http://127.0.0.1:9/"}
        wrong: {callback_url: "http://127.0.0.1:9/", type: both}
        relative: {callback_url: "/x"}
      unknown:
        lost: {callback_url: "http://127.0.0.1:9/"}
"""


@pytest.mark.feature("C22")
def test_jobs_and_dead_letters_are_counted_exactly(channel: Channel) -> None:
    one, two = channel.consumer("one"), channel.consumer("two")
    for _ in range(4):
        channel.sent()
    jobs = [job["ID"] for job in one.queued()]
    for job, state in zip(jobs, ("INFLIGHT", "DELIVERED", "DEAD"), strict=False):
        one.move(job, "INFLIGHT", 60)
        one.move(job, state)
    status = channel.api.get("/job-status").json[channel.id]
    rows = {row["status"]: row["count"] for row in status["one"]}
    assert rows == {1001: 1, 1002: 1, 1003: 1, 1004: 1}
    assert [row["count"] for row in status["two"]] == [4]
    for row in status["one"]:
        assert moment(row["oldestItemTimestamp"]) <= moment(row["newestItemTimestamp"])

    def dead() -> dict[str, int]:
        answer = channel.api.get("/dlq-status").json["consumers"]
        mine = [row for row in answer if row["channelId"] == channel.id]
        assert mine[0]["channelName"] == f"{channel.id} channel"
        assert mine[0]["consumerName"] == "one"
        return {row["consumerId"]: row["deadCount"] for row in mine}

    assert dead() == {"one": 1, "two": 0}
    figures = channel.api.get("/metrics").text
    label = f'{{channel="{channel.id}",consumer="one"}}'
    assert f"queued_job_count{label} 1" in figures
    assert f"dead_job_count{label} 1" in figures
    channel.api.form("POST", f"{one.path}/dlq", {"requeue": "k-one"})
    assert dead() == {"one": 0, "two": 0}
    assert two.dead() == []


@pytest.mark.feature("C22")
def test_deliveries_are_counted(channel: Channel, receiver: Receiver) -> None:
    channel.consumer("one", receiver.url(), "push")
    location = channel.sent()
    eventually(lambda: channel.statuses(location) == ["DELIVERED"])
    figures = channel.api.get("/metrics").text
    assert "penstock_deliveries_total " in figures
    assert "penstock_delivery_failures_total " in figures


@pytest.mark.feature("C02", "C17", "C22")
def test_a_seed_is_written_once_and_again_when_it_changes(tmp_path: Path) -> None:
    config, data = tmp_path / "p.yaml", tmp_path / "data"
    config.write_text(SEED)
    with serving(data, "--config", str(config)) as broker:
        api = Api(broker.host, broker.port)
        assert api.get("/producer/p").json["Name"] == "Producer"
        assert api.get("/channel/c").json["Token"] == "canary-channel"
        kinds = {
            url.rpartition("/")[2]: api.get(url).json["Type"]
            for url in api.get("/channel/c/consumers").json["Result"]
        }
        assert kinds == {"pulls": "pull", "empty": "push", "none": "push"}
        skipped = [
            json.loads(line) for line in broker.errors().splitlines() if '"seed_skipped"' in line
        ]
        assert {line["consumer"] for line in skipped} == {"wrong", "relative", "lost"}
        assert "both" in next(line["reason"] for line in skipped if line["consumer"] == "wrong")
        status = api.get("/_status")
        assert status.json["AppStatus"] == 3
        assert status.json["SeedData"]["Channels"] == [{"ID": "c", "Name": "Channel"}]
        assert "canary" not in status.text + api.get("/job-status").text + broker.errors()
        assert "canary" not in api.get("/metrics").text + api.get("/dlq-status").text
        since = api.get("/producer/p").headers["last-modified"]
        api.put("/producer/p", {"name": "Edited", "token": "x"}, If_Unmodified_Since=since)
    with serving(data, "--config", str(config)) as broker:
        api = Api(broker.host, broker.port)
        assert api.get("/producer/p").json["Name"] == "Edited"
    config.write_text(SEED.replace("name: Producer", "name: Changed"))
    with serving(data, "--config", str(config)) as broker:
        api = Api(broker.host, broker.port)
        assert api.get("/producer/p").json["Name"] == "Changed"


@pytest.mark.feature("C17")
def test_secrets_at_rest_are_in_a_private_file_and_sealed_with_a_key(tmp_path: Path) -> None:
    def kept() -> bytes:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return b"".join(path.read_bytes() for path in files)

    with serving(tmp_path, "--set", "channels.sealing_key=canary-key") as broker:
        api = Api(broker.host, broker.port)
        api.put("/channel/c", {"token": "canary-token"})
        api.put("/channel/c/consumer/k", {"token": "canary-token", "callbackUrl": "http://a/"})
        assert "canary" not in broker.errors()
    assert b"canary" not in kept()
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "metadata").rglob("*.db*")}
    assert modes <= {0}
    with serving(tmp_path, "--set", "channels.sealing_key=canary-key") as broker:
        assert Api(broker.host, broker.port).get("/channel/c").json["Token"] == "canary-token"
    with serving(tmp_path, "--set", "channels.sealing_key=another") as broker:
        assert Api(broker.host, broker.port).get("/channel/c").status == 404
        assert "channels.sealing_key" in broker.errors()


@pytest.mark.feature("C17")
def test_a_gateway_signs_requests(tmp_path: Path) -> None:
    secret = base64.b64encode(b"k" * 32).decode()
    with serving(tmp_path, "--set", f"channels.gateway.secrets={secret}") as broker:
        api = Api(broker.host, broker.port)

        def sign(content: str, version: str = "v1", age: int = 0) -> str:
            stamp = int(time.time()) - age
            digest = hmac.new(b"k" * 32, f"{stamp}.{content}".encode(), hashlib.sha256).hexdigest()
            return f"t={stamp},{version}={digest}"

        def summary(path: str, signature: str) -> tuple[int, str]:
            return api.get(path, X_Broker_Signature=signature).summary

        assert api.get("/producers").summary == (401, "missing X-Broker-Signature header")
        for malformed in ("", "x", "t=1", "t=x,v1=ab", "v1=ab,t=1", f"t={int(time.time())},v9=ab"):
            assert summary("/producers", malformed) == (401, "malformed X-Broker-Signature header")
        old = (403, "request timestamp outside tolerance window")
        assert summary("/producers", sign("", age=1000)) == old
        assert summary("/producers", sign("x")) == (403, "invalid signature")
        assert summary("/producers", sign(""))[0] == 200
        assert summary("/producers", f"{sign('x')},{sign('').partition(',')[2]}")[0] == 200
        bound = sign("GET./producers?next=a.", "v2")
        assert summary("/producers?next=a", bound)[0] == 200
        assert summary("/channels", bound) == (403, "invalid signature")
        body = "token=t"
        made = api.form("PUT", "/producer/p", {"token": "t"}, X_Broker_Signature=sign(body))
        assert made.status == 200
        assert api.get("/_status").status == 200
        assert api.get("/healthz").status == 200
