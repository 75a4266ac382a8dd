"""Arbitrary requests: none makes the broker fail."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protocols.http.channels.routes import channel_router
from tests.integration.channels.api import Api, Channel

PATHS = [
    "/producers",
    "/producer/{p}",
    "/channels",
    "/channel/{c}",
    "/channel/{c}/broadcast",
    "/channel/{c}/consumers",
    "/channel/{c}/messages",
    "/channel/{c}/messages-status",
    "/channel/{c}/message/{m}",
    "/channel/{c}/scheduled-messages",
    "/channel/{c}/scheduled-message/{m}",
    "/_status",
    "/job-status",
    "/dlq-status",
    *(
        "/channel/{c}/consumer/{k}" + path
        for path in (
            "",
            "/queued-jobs",
            "/claim",
            "/attempts",
            "/replay",
            "/secret",
            "/rotate-secret",
            "/limits",
            "/disable",
            "/enable",
            "/dlq",
            "/job/{j}",
            "/job/{j}/requeue-dead-job",
            "/job/{j}/extend",
            "/job/{j}/attempts",
        )
    ),
]
WEIRD = st.sampled_from(["%", "%25", "%2F", "..", "%00", "%ff", "x" * 300, "ä", "a b", "*", ""])
HEADERS = {
    "X-Broker-Channel-Token": ["ct", "no"],
    "X-Broker-Consumer-Token": ["k-one", "no"],
    "X-Broker-Producer-ID": ["fuzz-p", "no"],
    "X-Broker-Producer-Token": ["pt", "no"],
    "X-Broker-Message-ID": ["m", "a/b", "x" * 300],
    "X-Broker-Message-Priority": ["1", "-9", "x", "9" * 50],
    "X-Broker-Metadata-Headers": ["A,B", ",,,", "A" * 500, "X-Broker-Channel-Token"],
    "X-Broker-Scheduled-For": ["2099-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "x"],
    "X-Broker-Lease": ["1", "ff", "zz", "-1"],
    "If-Match": ['"1"', "x"],
    "If-Unmodified-Since": ["x", "Mon, 02 Jan 2006 15:04:05 GMT"],
    "Content-Type": ["application/x-www-form-urlencoded", "application/json", "x/y; z"],
    "Accept": ["application/problem+json", "*/*"],
}
BODIES = st.one_of(
    st.none(),
    st.binary(max_size=50),
    st.sampled_from(
        [
            b'{"NextState":"INFLIGHT","IncrementalTimeout":5}',
            b'{"NextState":"DELIVERED"}',
            b'{"NextState":"DEAD"}',
            b'{"From":0,"To":99999999999999}',
            b'{"From":"2020-01-01T00:00:00Z"}',
            b"callbackUrl=http://127.0.0.1:9/&type=pull",
            b"token=%ff&name=%",
            b"requeue=k-one",
            b"ratePerSecond=1&concurrency=99",
            b"[" * 100_000,
        ]
    ),
)


@pytest.fixture(scope="module")
def aim(api: Api) -> Iterator[dict[str, str]]:
    channel = Channel(api, "fuzz")
    consumer = channel.consumer("one")
    for number in range(3):
        channel.sent(str(number))
    jobs = consumer.queued()
    yield {
        "p": "fuzz-p",
        "c": "fuzz",
        "k": "one",
        "m": jobs[0]["Message"]["MessageID"],
        "j": jobs[1]["ID"],
    }
    assert consumer.request("GET", "/queued-jobs").status in (200, 401, 403, 412)


def test_the_requests_cover_every_path() -> None:
    from unittest.mock import MagicMock

    paths = {route.path for route in channel_router(MagicMock(), MagicMock()).routes}
    known = {path.count("/") for path in paths}
    assert {path.count("/") for path in PATHS} == known
    assert len(PATHS) == len(paths)


@pytest.mark.feature("C12", "C16")
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_makes_the_broker_fail(api: Api, aim: dict[str, str], data: Any) -> None:
    template = data.draw(st.sampled_from(PATHS))
    names = {name: data.draw(st.one_of(st.just(good), WEIRD)) for name, good in aim.items()}
    path = template.format(**names).encode("latin-1", "replace").decode("latin-1")
    if data.draw(st.booleans()):
        key = data.draw(
            st.sampled_from(["next", "previous", "status", "limit", "cursor", "timeout"])
        )
        path += (
            f"?{key}={data.draw(st.sampled_from(['', '1', '-1', 'zz', '%ff', 'YXxi', '9' * 30]))}"
        )
    method = data.draw(
        st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"])
    )
    chosen = data.draw(st.sets(st.sampled_from(sorted(HEADERS))))
    headers = {name: data.draw(st.sampled_from(HEADERS[name])) for name in sorted(chosen)}
    connection = http.client.HTTPConnection(api.host, api.port, timeout=60)
    try:
        # By hand: the client refuses paths that a rude one would send.
        connection.putrequest(method, "/x", skip_host=True, skip_accept_encoding=True)
        connection._buffer[0] = f"{method} {path.replace(' ', '%20')} HTTP/1.1".encode("latin-1")  # type: ignore[attr-defined]
        body = data.draw(BODIES) or b""
        for name, value in (headers | {"Host": "a", "Content-Length": str(len(body))}).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    assert response.status < 500, (method, path, headers, body, response.status, answer)
    kind = response.getheader("content-type", "")
    assert not answer or kind.startswith(("application/json", "text/plain", "application/problem"))
