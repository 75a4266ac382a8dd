"""The channel API as its clients see it: plain requests, and a receiver of webhooks."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlencode

from tests.integration.process import FREE_PORT, Broker

WAIT_SECONDS: Final = 60.0
FAST: Final = (
    *("--set", "channels.push.timeout_ms=1500"),
    *("--set", "channels.rational_delay_ms=250"),
    *("--set", "channels.push.backoff_seconds=0.1,0.2"),
    *("--set", "channels.push.max_retries=2"),
    *("--set", "channels.schedule.min_delay_seconds=1"),
)
"""Delays of a test: a job in flight ends after 2 seconds, a delivery has 3 attempts."""


@dataclass
class Answer:
    """One reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def summary(self) -> tuple[int, str]:
        return self.status, self.text


class Api:
    """Talks to a broker; one connection for each request."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def request(
        self, method: str, path: str, body: bytes | str | None = None, **headers: str
    ) -> Answer:
        """Headers are named with `_` for `-`."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT_SECONDS)
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, fields)
            response = connection.getresponse()
            reply_headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, reply_headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def form(self, method: str, path: str, fields: dict[str, str], **headers: str) -> Answer:
        kind = "application/x-www-form-urlencoded"
        return self.request(method, path, urlencode(fields), Content_Type=kind, **headers)

    def put(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Answer:
        answer = self.form("PUT", path, fields or {}, **headers)
        assert answer.status == 200, answer
        return answer


@dataclass
class Channel:
    """A channel with a producer; tokens are made from its name."""

    api: Api
    id: str

    def __post_init__(self) -> None:
        self.api.put(f"/producer/{self.id}-p", {"token": "pt", "name": f"{self.id} producer"})
        self.api.put(f"/channel/{self.id}", {"token": "ct", "name": f"{self.id} channel"})

    @property
    def path(self) -> str:
        return f"/channel/{self.id}"

    def consumer(
        self, id_: str, url: str = "http://127.0.0.1:9/none", kind: str = "pull"
    ) -> Consumer:
        self.api.put(
            f"{self.path}/consumer/{id_}", {"token": f"k-{id_}", "callbackUrl": url, "type": kind}
        )
        return Consumer(self, id_)

    def broadcast(self, payload: bytes | str = "hi", **headers: str) -> Answer:
        return self.api.request(
            "POST",
            f"{self.path}/broadcast",
            payload,
            X_Broker_Channel_Token="ct",
            X_Broker_Producer_ID=f"{self.id}-p",
            X_Broker_Producer_Token="pt",
            **headers,
        )

    def sent(self, payload: bytes | str = "hi", **headers: str) -> str:
        """The path of a message that was broadcast."""
        answer = self.broadcast(payload, **headers)
        assert answer.summary == (201, "")
        return answer.headers["location"]

    def statuses(self, location: str) -> list[str]:
        return [job["Status"] for job in self.api.get(location).json["Jobs"]]


@dataclass
class Consumer:
    """A consumer and its tokens."""

    channel: Channel
    id: str

    @property
    def path(self) -> str:
        return f"{self.channel.path}/consumer/{self.id}"

    def request(
        self, method: str, path: str, body: bytes | str | None = None, **headers: str
    ) -> Answer:
        tokens = {"X_Broker_Channel_Token": "ct", "X_Broker_Consumer_Token": f"k-{self.id}"}
        return self.channel.api.request(method, f"{self.path}{path}", body, **(tokens | headers))

    def queued(self, query: str = "") -> list[dict[str, Any]]:
        answer = self.request("GET", f"/queued-jobs{query}")
        assert answer.status == 200, answer
        jobs: list[dict[str, Any]] = answer.json["Result"]
        return jobs

    def payloads(self) -> list[str]:
        return [job["Message"]["Payload"] for job in self.queued("?limit=100")]

    def state(self, job: str) -> str:
        answer = self.request("GET", f"/job/{job}")
        assert answer.status == 200, answer
        return str(answer.json["Status"])

    def move(self, job: str, state: str, timeout: int | None = None, **headers: str) -> Answer:
        body: dict[str, object] = {"NextState": state}
        if timeout is not None:
            body["IncrementalTimeout"] = timeout
        return self.request("POST", f"/job/{job}", json.dumps(body), **headers)

    def dead(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self.channel.api.get(f"{self.path}/dlq").json["DeadJobs"]
        return jobs


@dataclass
class Call:
    """A delivery that a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)
    fields: dict[str, list[str]] = field(default_factory=dict)
    """All values of each header, in order."""


class Receiver:
    """Takes webhooks on a free port; `answer` decides what each gets back."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answer: Callable[[Call], tuple[int, dict[str, str]] | None] = lambda call: (200, {})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def to(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                call = Call(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                for name, value in self.headers.items():
                    call.fields.setdefault(name.lower(), []).append(value)
                receiver.calls.append(call)
                answer = receiver.answer(call)
                if answer is None:
                    self.connection.close()
                    self.close_connection = True
                    return
                status, headers = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - the name that the server looks for

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing."""

        return Handler


@contextmanager
def serving(directory: object, *arguments: str) -> Iterator[Broker]:
    with Broker("--data", str(directory), *FREE_PORT, *FAST, *arguments) as broker:
        yield broker


def moment(text: str) -> datetime:
    """A time of a reply; as text they do not compare, for zeros at the end are left out."""
    return datetime.fromisoformat(text)


def eventually(condition: Callable[[], object]) -> None:
    """Return once the condition holds; fails if it never does."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)
