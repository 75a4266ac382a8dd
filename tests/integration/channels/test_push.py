"""Deliveries: what a callback receives, how its responses count, and which addresses are closed."""

import base64
import hashlib
import hmac
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.channels.api import Api, Call, Channel, Receiver, eventually, serving

pytestmark = pytest.mark.feature("C05")


def signed(secret: str, call: Call) -> bool:
    """What a receiver does by the Standard Webhooks document."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    stamp = call.headers["webhook-timestamp"]
    content = f"{call.headers['webhook-id']}.{stamp}.".encode() + call.body
    right = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    parts = [part.partition(",") for part in call.headers["webhook-signature"].split(" ")]
    fresh = abs(time.time() - int(stamp)) < 300
    return fresh and any(version == "v1" and value == right for version, _, value in parts)


@pytest.mark.feature("C18")
def test_a_delivery_has_ids_tokens_and_a_signature(channel: Channel, receiver: Receiver) -> None:
    consumer = channel.consumer("one", receiver.url("/hook?a=b"), "push")
    location = channel.sent(
        '{"a":1}',
        Content_Type="application/json",
        X_Broker_Message_ID="m-1",
        X_Broker_Message_Priority="4",
    )
    eventually(lambda: channel.statuses(location) == ["DELIVERED"])
    (call,) = receiver.calls
    assert (call.path, call.body) == ("/hook?a=b", b'{"a":1}')
    expected = {
        "content-type": "application/json",
        "user-agent": "Penstock",
        "x-broker-message-priority": "4",
        "x-broker-channel-id": channel.id,
        "x-broker-consumer-id": "one",
        "x-broker-message-id": "m-1",
        "x-broker-consumer-token": "k-one",
        "x-broker-metadata-headers": "",
        "x-broker-attempt": "1",
        "webhook-id": "m-1",
    }
    assert {name: call.headers[name] for name in expected} == expected
    assert call.headers["x-request-id"]
    (secret,) = consumer.request("GET", "/secret").json["Secrets"]
    assert signed(secret, call)
    assert not signed("whsec_AAAA", call)


@pytest.mark.feature("C18")
def test_both_secrets_sign_during_a_rotation(channel: Channel, receiver: Receiver) -> None:
    consumer = channel.consumer("one", receiver.url(), "push")
    old = consumer.request("GET", "/secret").json["Secrets"]
    rotated = consumer.request("POST", "/rotate-secret").json["Secrets"]
    assert rotated[1:] == old
    assert rotated == consumer.request("GET", "/secret").json["Secrets"]
    channel.sent("{}")
    eventually(lambda: receiver.calls)
    assert all(signed(secret, receiver.calls[0]) for secret in rotated)
    parts = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert consumer.request("POST", "/rotate-secret", parts).json["Secrets"][0] == parts
    assert consumer.request("POST", "/rotate-secret", "no base64!").status == 400
    assert channel.api.get(f"{consumer.path}/secret").status == 403


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_responses_with_2xx_are_successes(
    channel: Channel, receiver: Receiver, status: int
) -> None:
    receiver.answer = lambda call: (status, {})
    channel.consumer("one", receiver.url(), "push")
    location = channel.sent()
    eventually(lambda: channel.statuses(location) == ["DELIVERED"])
    assert len(receiver.calls) == 1


@pytest.mark.feature("C21")
@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 500, 503])
def test_other_responses_are_retried_until_the_job_is_dead(
    channel: Channel, receiver: Receiver, status: int
) -> None:
    receiver.answer = lambda call: (status, {"Location": receiver.url("/elsewhere")})
    consumer = channel.consumer("one", receiver.url(), "push")
    location = channel.sent()
    eventually(lambda: channel.statuses(location) == ["DEAD"])
    assert [call.path for call in receiver.calls] == ["/hook"] * 3
    assert [call.headers["x-broker-attempt"] for call in receiver.calls] == ["1", "2", "3"]
    assert len({call.headers["webhook-id"] for call in receiver.calls}) == 1
    pauses = [b.at - a.at for a, b in zip(receiver.calls, receiver.calls[1:], strict=False)]
    assert pauses[0] >= 0.09
    assert pauses[1] >= 0.19
    attempts = consumer.request("GET", "/attempts").json["Attempts"]
    assert [(a["Number"], a["Status"]) for a in attempts] == [(3, status), (2, status), (1, status)]
    assert all(attempt["LatencyMs"] > 0 for attempt in attempts)
    job = consumer.dead()[0]["JobRequeueURL"].split("/")[-2]
    assert consumer.request("GET", f"/job/{job}/attempts").json["Attempts"] == attempts
    receiver.answer = lambda call: (200, {})
    assert consumer.request("POST", f"/job/{job}/requeue-dead-job").status == 202
    eventually(lambda: channel.statuses(location) == ["DELIVERED"])


def test_a_receiver_that_hangs_or_resets_is_a_failure(channel: Channel, receiver: Receiver) -> None:
    def hang_then_reset(call: Call) -> tuple[int, dict[str, str]] | None:
        if len(receiver.calls) == 1:
            time.sleep(3)
        return None if len(receiver.calls) < 3 else (200, {})

    receiver.answer = hang_then_reset
    consumer, begun = channel.consumer("one", receiver.url(), "push"), time.monotonic()
    location = channel.sent()
    eventually(lambda: channel.statuses(location) == ["DELIVERED"])
    assert receiver.calls[1].at - begun >= 1.6
    last, second, first = consumer.request("GET", "/attempts").json["Attempts"]
    assert (first["Status"], first["Error"]) == (0, "no answer in 1.5 s")
    assert second["Status"] == 0
    assert (last["Status"], last["Error"]) == (200, "")


def test_a_refused_connection_is_a_failure(channel: Channel) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    consumer = channel.consumer("one", f"http://127.0.0.1:{port}/", "push")
    location = channel.sent()
    eventually(lambda: channel.statuses(location) == ["DEAD"])
    assert len(consumer.request("GET", "/attempts").json["Attempts"]) == 3


def test_retry_after_delays_the_next_call(channel: Channel, receiver: Receiver) -> None:
    receiver.answer = lambda call: (
        (429, {"Retry-After": "2"}) if len(receiver.calls) == 1 else (200, {})
    )
    consumer = channel.consumer("one", receiver.url(), "push")
    consumer.request(
        "PUT",
        "/limits",
        "concurrency=1",
        Content_Type="application/x-www-form-urlencoded",
    )
    first, second = channel.sent("a"), channel.sent("b")
    eventually(lambda: channel.statuses(first) + channel.statuses(second) == ["DELIVERED"] * 2)
    assert all(call.at - receiver.calls[0].at >= 1.9 for call in receiver.calls[1:])


@pytest.mark.feature("C21")
def test_a_consumer_that_responds_410_is_disabled_until_it_is_enabled(
    channel: Channel, receiver: Receiver
) -> None:
    receiver.answer = lambda call: (410, {})
    consumer = channel.consumer("one", receiver.url(), "push")
    first = channel.sent()
    eventually(lambda: channel.statuses(first) == ["DEAD"])
    eventually(lambda: consumer.request("GET", "/limits").json["Disabled"])
    assert consumer.request("GET", "/limits").json["DisabledReason"] == "it answered 410 Gone"
    second = channel.sent()
    assert channel.statuses(second) == ["QUEUED"]
    assert len(receiver.calls) == 1
    receiver.answer = lambda call: (200, {})
    assert consumer.request("POST", "/enable").status == 202
    eventually(lambda: channel.statuses(second) == ["DELIVERED"])
    assert consumer.request("POST", "/disable").status == 202
    third = channel.sent()
    time.sleep(0.3)
    assert channel.statuses(third) == ["QUEUED"]
    consumer.request("POST", "/enable")
    eventually(lambda: channel.statuses(third) == ["DELIVERED"])


@pytest.mark.feature("C21")
def test_deliveries_stay_within_the_rate_limit(channel: Channel, receiver: Receiver) -> None:
    consumer = channel.consumer("one", receiver.url(), "push")
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    limits = consumer.request("PUT", "/limits", "ratePerSecond=10&concurrency=4", **form)
    assert (limits.json["RatePerSecond"], limits.json["Concurrency"]) == (10, 4)
    assert consumer.request("PUT", "/limits", "ratePerSecond=x", **form).status == 400
    begun = time.monotonic()
    for _ in range(8):
        channel.sent()
    eventually(lambda: len(receiver.calls) == 8)
    assert receiver.calls[-1].at - begun >= 0.7


def test_concurrent_calls_stay_within_the_limit(channel: Channel, receiver: Receiver) -> None:
    running, most, lock = [0], [0], threading.Lock()

    def slow(call: Call) -> tuple[int, dict[str, str]]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.1)
        with lock:
            running[0] -= 1
        return 200, {}

    receiver.answer = slow
    consumer = channel.consumer("one", receiver.url(), "push")
    consumer.request(
        "PUT", "/limits", "concurrency=2", Content_Type="application/x-www-form-urlencoded"
    )
    consumer.request("POST", "/disable")
    for _ in range(12):
        channel.sent()
    consumer.request("POST", "/enable")
    eventually(lambda: len(receiver.calls) == 12)
    assert most[0] == 2


def test_deliveries_are_in_order_of_priority_then_age(channel: Channel, receiver: Receiver) -> None:
    consumer = channel.consumer("one", receiver.url(), "push")
    consumer.request(
        "PUT", "/limits", "concurrency=1", Content_Type="application/x-www-form-urlencoded"
    )
    consumer.request("POST", "/disable")
    for number, priority in enumerate([0, 5, 0, 9, 5]):
        channel.sent(str(number), X_Broker_Message_Priority=str(priority))
    consumer.request("POST", "/enable")
    eventually(lambda: len(receiver.calls) == 5)
    assert [call.body for call in receiver.calls] == [b"3", b"1", b"4", b"0", b"2"]


def test_an_endless_response_is_aborted(channel: Channel) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    sent = [0]

    def talk() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while sent[0] < 1 << 30:
                connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent[0] += 65536

    talking = threading.Thread(target=talk)
    talking.start()
    channel.consumer("one", f"http://127.0.0.1:{server.getsockname()[1]}/", "push")
    location = channel.sent()
    eventually(lambda: channel.statuses(location) == ["DELIVERED"])
    talking.join()
    assert sent[0] < 64 << 20
    server.close()


# -- where callbacks lead


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A broker whose callbacks may lead to one loopback address, and it is another one."""
    with serving(
        tmp_path_factory.mktemp("closed"), "--set", "channels.push.max_retries=0"
    ) as broker:
        yield Api(broker.host, broker.port)


@pytest.mark.feature("C19")
@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "[::]",
        "[fe80::1]",
        "[fc00::1]",
        "[fec0::1]",
        "[5f00::1]",
        "[64:ff9b::a00:1]",
        "[64:ff9b:1::1]",
        "[2002:a00:1::]",
        "[::ffff:10.0.0.1]",
        "192.0.0.8",
        "3232235521",
        "0xa000001",
        "012.1",
    ],
)
def test_a_callback_to_a_closed_address_is_never_called(closed: Api, host: str) -> None:
    name = "".join(c if c.isalnum() else "-" for c in host)
    channel = Channel(closed, f"closed{name}")
    consumer = channel.consumer("one", f"http://{host}:9/", "push")
    location = channel.sent()
    eventually(lambda: channel.statuses(location) == ["DEAD"])
    (attempt,) = consumer.request("GET", "/attempts").json["Attempts"]
    assert attempt["Status"] == 0
    assert re.search("not open to callbacks|not a canonical", attempt["Error"]), attempt


@pytest.mark.feature("C19")
def test_a_setting_opens_a_network(tmp_path: Path, receiver: Receiver) -> None:
    with serving(
        tmp_path, "--set", "channels.push.allow_networks=10.0.0.0/8,127.0.0.2/32"
    ) as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        channel.consumer("one", receiver.url(), "push")
        location = channel.sent()
        eventually(lambda: channel.statuses(location) == ["DELIVERED"])


def test_receivers_that_never_respond_do_not_delay_others(
    tmp_path: Path, receiver: Receiver
) -> None:
    settings = ("channels.push.timeout_ms=3600000", "channels.push.workers=20")
    options = [part for setting in settings for part in ("--set", setting)]
    with (
        serving(tmp_path, *options, "--set", "shutdown.drain_seconds=0") as broker,
        socket.create_server(("127.0.0.1", 0), backlog=100) as silent,
    ):
        api = Api(broker.host, broker.port)
        for id_ in ("a", "b", "c"):
            channel = Channel(api, id_)
            channel.consumer("one", f"http://127.0.0.1:{silent.getsockname()[1]}/", "push")
            for number in range(20):
                channel.sent(str(number))
        eventually(lambda: broker.figure("penstock_deliveries_running") >= 15)
        good = Channel(api, "good")
        good.consumer("one", receiver.url(), "push")
        for number in range(5):
            good.sent(str(number))
        eventually(lambda: len(receiver.calls) == 5)
