"""The limits and rules of a channel hold for messages published over every protocol."""

import base64
import hmac
import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.integration.channels.api import Api, Channel, Receiver, eventually, serving
from tests.integration.process import Broker

pytestmark = pytest.mark.feature("C23")
SECRET = "c2VjcmV0"
WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def channel(broker: Broker, request: pytest.FixtureRequest) -> Channel:
    return Channel(Api(broker.host, broker.port), f"d{abs(hash(request.node.name))}")


def published(broker: Broker, *messages: tuple[str, bytes, bytes]) -> list[dict[str, object]]:
    """Publish subject, header lines and payload of each message in one write; the acks."""
    host, _, port = broker.nats_url.removeprefix("nats://").partition(":")
    data = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB in.* 1\r\n'
    for number, (subject, lines, payload) in enumerate(messages):
        block = b"NATS/1.0\r\n" + lines + b"\r\n"
        sizes = f"{len(block)} {len(block) + len(payload)}"
        data += f"HPUB {subject} in.{number} {sizes}\r\n".encode() + block + payload + b"\r\n"
    acks: dict[bytes, dict[str, object]] = {}
    with (
        socket.create_connection((host, int(port)), WAIT_SECONDS) as connection,
        connection.makefile("rb") as reader,
    ):
        connection.sendall(data)
        while len(acks) < len(messages):
            line = reader.readline().split()
            assert line, "the connection was closed"
            if line[0] == b"MSG":
                acks[line[1]] = json.loads(reader.read(int(line[-1]) + 2))
    return [acks[b"in.%d" % number] for number in range(len(messages))]


def pushed(broker: Broker, topic: str, headers: list[list[str]]) -> str:
    """The error that a push of one message is answered with; empty when it is stored."""
    rows = [{"payload": "by push", "headers": headers}]
    request = {"namespace": "default/default", "batches": [{"topic": topic, "data": rows}]}
    answer = Api(broker.host, broker.port).request(
        "POST", "/v1/push", json.dumps(request), Content_Type="application/json"
    )
    assert answer.status == 200
    return str(answer.json["batches"][0].get("message", ""))


@pytest.mark.feature("C05")
def test_a_callback_receives_no_header_that_http_reserves_or_cannot_carry(
    broker: Broker, channel: Channel, receiver: Receiver
) -> None:
    channel.consumer("one", receiver.url(), "push")
    dropped = broker.figure("penstock_delivery_headers_dropped_total")
    lines = (
        b"Transfer-Encoding : chunked\r\nX Inner: 1\r\n: 1\r\nContent-Length: 1\r\n"
        b"Connection: X-Good\r\nX-Good: yes\r\n"
    )
    (ack,) = published(broker, (channel.id, lines, b"hello"))
    assert "error" not in ack
    eventually(lambda: receiver.calls)
    (call,) = receiver.calls
    assert call.body == b"hello"
    assert call.headers["x-good"] == "yes"
    assert call.headers["content-length"] == "5"
    assert {"transfer-encoding", "transfer-encoding ", "x inner", "connection", ""}.isdisjoint(
        call.headers
    )
    assert call.headers["x-broker-metadata-headers"] == "X-Good"
    assert broker.figure("penstock_delivery_headers_dropped_total") == dropped + 5


@pytest.mark.feature("C05")
def test_a_callback_receives_every_value_of_a_repeated_header(
    broker: Broker, channel: Channel, receiver: Receiver
) -> None:
    channel.consumer("one", receiver.url(), "push")
    dropped = broker.figure("penstock_delivery_headers_dropped_total")
    lines = b"X-A: 1\r\nx-a: 2\r\nX-A: 3\r\nX-B: 4\r\n"
    (ack,) = published(broker, (channel.id, lines, b"hello"))
    assert "error" not in ack
    eventually(lambda: receiver.calls)
    (call,) = receiver.calls
    assert call.fields["x-a"] == ["1", "2", "3"]
    assert call.headers["x-broker-metadata-headers"] == "X-A,X-B"
    assert broker.figure("penstock_delivery_headers_dropped_total") == dropped


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"".join(b"X-%d: 1\r\n" % n for n in range(5000)), "HEADERS_MAX is 100"),
        (b"X-Broker-Message-ID: " + b"m" * 256 + b"\r\n", "ID_CHARACTERS_MAX is 255"),
        (b"X-Broker-Message-ID: " + b"m" * 300_000 + b"\r\n", "HEADER_BYTES_MAX is 65536"),
    ],
)
def test_a_message_over_a_limit_is_refused_and_has_no_job(
    broker: Broker, channel: Channel, lines: bytes, reason: str
) -> None:
    consumer = channel.consumer("one")
    good = b"X-A: 1\r\n"
    first, refused, last = published(
        broker, (channel.id, good, b"1"), (channel.id, lines, b"2"), (channel.id, good, b"3")
    )
    assert [first.get("error"), last.get("error")] == [None, None]
    error = refused["error"]
    assert isinstance(error, dict)
    assert error["code"] == 400
    assert reason in error["description"]
    headers = [line.decode().split(": ") for line in lines.split(b"\r\n") if line]
    assert reason in pushed(broker, channel.id, headers)
    eventually(lambda: consumer.payloads() == ["1", "3"])


def test_topics_without_a_channel_have_no_such_limits(broker: Broker) -> None:
    lines = b"".join(b"X-%d: 1\r\n" % n for n in range(5000))
    topics = "/v1/tenants/default/namespaces/default/topics"
    assert broker.post(topics, {"topic": "free"}).status == 201
    (ack,) = published(broker, ("free", lines, b"x"))
    assert "error" not in ack


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("signed")
    config = directory / "config.yaml"
    config.write_text(
        f"""
channels:
  gateway: {{secrets: ["{SECRET}"], exempt_paths: ["/_status", "/job-status"]}}
  seed:
    producers: {{p: {{token: pt}}}}
    channels: {{orders: {{token: ct}}}}
    consumers:
      orders: {{worker: {{callback_url: "http://127.0.0.1:9/", token: kt, type: pull}}}}
"""
    )
    with serving(directory / "data", "--config", str(config)) as running:
        yield running


def jobs(broker: Broker) -> int:
    rows = broker.get("/job-status").body["orders"]["worker"]
    return sum(row["count"] for row in rows)


@pytest.mark.feature("C03")
def test_a_channel_with_a_gateway_accepts_signed_broadcasts_only(signed: Broker) -> None:
    before = jobs(signed)
    (ack,) = published(signed, ("orders", b"X-A: 1\r\n", b"by nats"))
    assert "signed" in json.dumps(ack["error"])
    assert "signed" in pushed(signed, "orders", [])
    path = "/v1/tenants/default/namespaces/default/topics/orders/links"
    linked = signed.post(path, {"app": "a", "epoch": 1, "objects": []})
    assert linked.status == 403
    assert "signed" in json.dumps(linked.body)
    assert jobs(signed) == before
    stamp, payload = int(time.time()), b"by broadcast"
    digest = hmac.digest(base64.b64decode(SECRET), b"%d." % stamp + payload, "sha256").hex()
    answer = Api(signed.host, signed.port).request(
        "POST",
        "/channel/orders/broadcast",
        payload,
        X_Broker_Channel_Token="ct",
        X_Broker_Producer_ID="p",
        X_Broker_Producer_Token="pt",
        X_Broker_Signature=f"t={stamp},v1={digest}",
    )
    assert answer.summary == (201, "")
    assert jobs(signed) == before + 1


def test_other_topics_of_a_broker_with_a_gateway_accept_unsigned_messages(signed: Broker) -> None:
    topics = "/v1/tenants/default/namespaces/default/topics"
    assert signed.post(topics, {"topic": "free"}).status == 201
    (ack,) = published(signed, ("free", b"X-A: 1\r\n", b"x"))
    assert "error" not in ack
    assert pushed(signed, "free", []) == ""
