"""Hostile numbers and JSON in every input of the HTTP API: never a 500, never an exception.

The inputs are taken from the OpenAPI document: query parameters, headers, path segments, forms, and
every member of every JSON body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pytest

from penstock.formats.api import ARROW_STREAM
from tests.integration.process import FREE_PORT, WAIT_SECONDS, Broker

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
DIGITS: Final = "9" * 5000
DEEP: Final = 50_000

TEXTS: Final = {
    "digits": DIGITS,
    "negative digits": f"-{DIGITS}",
    "64 bits": str(1 << 64),
    "63 bits": str(1 << 63),
    "negative": "-1",
    "exponent": "1e400",
    "hexadecimal": "0x" + "f" * 5000,
    "hexadecimal digits": "f" * 5000,
    "fraction of digits": f"0.{DIGITS}",
    "Arabic digit": "\u0663" * 20,
    "superscript": "\u00b2",
    "underscore": "1_0",
    "spaces": " 1 ",
    "not a number": "NaN",
    "empty": "",
    "NUL": "\0",
    "surrogate escapes": "%ED%A0%80",
    "nested lists": "[" * 20_000,
    "nested objects": '{"a":' * 4000,
    "tagged digits": f'{{"Int64":{DIGITS}}}',
    "tagged exponent": '{"Int64":1e400}',
    "tagged surrogate": '{"String":"\\ud800"}',
    "base64 of digits": "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5fDk5OTk5OTk5OTk5OTk5OTk=",
    "late date": "9999-12-31T23:59:60.9999999999Z",
    "early date": "0000-00-00T00:00:00+99:99",
    "late HTTP date": "Fri, 99 Dec 99999 99:99:99 GMT",
}
VALUES: Final = {
    "digits": DIGITS,
    "negative digits": f"-{DIGITS}",
    "digits and fraction": f"{DIGITS}.5",
    "exponent": "1e400",
    "exponent of digits": f"1e{DIGITS}",
    "64 bits": str(1 << 64),
    "negative": "-1",
    "null": "null",
    "not a number": "NaN",
    "surrogate": '"\\ud800"',
    "NUL": '"\\u0000"',
    "text of digits": f'"{DIGITS}"',
    "late date": '"9999-12-31T23:59:60.9999999999Z"',
    "nested lists": "[" * DEEP + "]" * DEEP,
    "nested objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "unclosed lists": "[" * DEEP,
    "list": "[[]]",
    "object": '{"a":{}}',
    "tagged digits": f'{{"Int64":{DIGITS}}}',
    "tagged float": '{"Int64":1e400}',
}
BODIES: Final = {
    "empty": b"",
    "not UTF-8": b'{"\xff":"\xff"}',
    "text that is not UTF-8": b'"\xff"',
    "nested lists": b"[" * DEEP,
    "nested objects": b'{"a":' * DEEP,
    "digits": DIGITS.encode(),
    "NULs": bytes(100),
    "mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
}
NAMES: Final = {
    "tenant": "default",
    "namespace": "default",
    "topic": "raw",
    "channel": "c",
    "producer": "p",
    "consumer": "pull",
}
HEADERS: Final = {
    "X-Broker-Channel-Token": "t",
    "X-Broker-Producer-ID": "p",
    "X-Broker-Producer-Token": "t",
    "X-Broker-Consumer-Token": "t",
}
FURTHER_HEADERS: Final = (
    "X-Broker-Lease",
    "X-Broker-Message-Priority",
    "X-Broker-Message-ID",
    "X-Broker-Scheduled-For",
    "X-Broker-Metadata-Headers",
    "X-Broker-Signature",
    "X-Request-ID",
    "If-Match",
    "If-Unmodified-Since",
    "Accept",
    "Content-Type",
    "Content-Encoding",
)
MEMBERS: Final = {"job": ("NextState", "IncrementalTimeout"), "replay": ("From", "To")}
"""Of JSON bodies that the document does not describe, by the last name in their path."""
UNWANTED: Final = frozenset(("delete", "disable", "rotate-secret"))


class Operation(NamedTuple):
    """A method of a path."""

    method: str
    path: str
    facts: dict[str, Any]


class Fuzzer:
    """Sends requests to a broker and demands that none of them fails in it."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.document = broker, broker.get("/openapi.json").body
        self.connection = HTTPConnection(broker.host, broker.port, timeout=WAIT_SECONDS)
        self.names = NAMES
        self.failures: list[str] = []

    def operations(self) -> Iterator[Operation]:
        for path, methods in self.document["paths"].items():
            for method, facts in methods.items():
                # Nothing that later requests need may vanish.
                if method != "delete" and path.rpartition("/")[2] not in UNWANTED:
                    yield Operation(method.upper(), path, facts)

    def send(
        self,
        operation: Operation,
        what: str,
        *,
        names: dict[str, str] | None = None,
        query: str = "",
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        path = operation.path
        for name, value in {**self.names, **(names or {})}.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        sent = {**HEADERS, **(headers or {})}
        target = f"{path}?{query}" if query else path
        if self._status(operation.method, target, body, sent) == 500:
            self.failures.append(f"{operation.method} {operation.path}: {what}")

    def _status(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> int:
        try:
            self.connection.request(method, target, body, headers)
            response = self.connection.getresponse()
            response.read()
        except (HTTPException, OSError):
            # The broker closed the connection, after the answer to the request before this one.
            self.connection.close()
            self.connection.request(method, target, body, headers)
            response = self.connection.getresponse()
            response.read()
        return response.status

    def parameters(self, operation: Operation, place: str) -> list[str]:
        found = operation.facts.get("parameters", [])
        return [parameter["name"] for parameter in found if parameter["in"] == place]

    def content(self, operation: Operation) -> dict[str, Any]:
        content: dict[str, Any] = operation.facts.get("requestBody", {}).get("content", {})
        return content

    def resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.resolve(self.document["components"]["schemas"][name])
        return schema

    def bodies(self, schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """JSON texts that fit a schema but for one hostile value, and where that is."""
        schema = self.resolve(schema)
        for name, member in schema.get("properties", {}).items():
            for where, text in self._values(member):
                members = {key: _example(key) for key in schema["properties"]} | {name: text}
                shown = ",".join(f'"{key}":{value}' for key, value in members.items() if value)
                yield f"{name}{where}", f"{{{shown}}}"

    def _values(self, schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for name, value in VALUES.items():
            yield f": {name}", value
        schema = self.resolve(schema)
        for choice in [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            choice = self.resolve(choice)
            if "items" in choice:
                for where, text in self._values(choice["items"]):
                    yield f"[]{where}", f"[{text}]"
            if "properties" in choice:
                for where, text in self.bodies(choice):
                    yield f".{where}", text


def _example(name: str) -> str:
    """A value for a member of a body, as JSON; nothing where it is better left out."""
    return {
        "namespace": '"default/default"',
        "topic": '"raw"',
        "topics": '[{"topic":"raw","offset":0}]',
        "batches": '[{"topic":"raw","data":[{"payload":"x"}]}]',
        "data": '[{"payload":"x"}]',
        "offset": "0",
        "timeout_ms": "1",
        "app": '"a"',
        "epoch": "1",
        "key": '"k"',
        "rows": "1",
        "size_bytes": "1",
        "crc32c": "1",
        "replaces": '["k"]',
        "tenant": '"default"',
        "name": '"n"',
        "type": '"int64"',
    }.get(name, "")


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    with Broker("--data", str(tmp_path_factory.mktemp("data")), *FREE_PORT) as broker:
        topics = "/v1/tenants/default/namespaces/default/topics"
        assert broker.post(topics, {"topic": "raw"}).status == 201
        fields = ["n:int64", "u:uint64?", "f:float64?", "s:string?"]
        assert broker.post(topics, {"topic": "typed", "fields": fields}).status == 201
        parted = {"topic": "parted", "fields": ["n:int64"], "partition_column": "n"}
        assert broker.post(topics, parted).status == 201
        fuzzer = Fuzzer(broker)
        for path, body in (
            ("/producer/p", "token=t"),
            ("/channel/c", "token=t"),
            ("/channel/c/consumer/pull", "token=t&type=pull&callbackUrl=http://127.0.0.1:1/"),
        ):
            put = Operation("PUT", path, {})
            fuzzer.send(put, "made", body=body.encode(), headers={"Content-Type": FORM})
        broadcast = Operation("POST", "/channel/c/broadcast", {})
        fuzzer.send(broadcast, "sent", body=b"x", headers={"Content-Type": "text/plain"})
        fuzzer.connection.request("GET", "/channel/c/consumer/pull/queued-jobs", headers=HEADERS)
        queued = json.loads(fuzzer.connection.getresponse().read())["Result"]
        fuzzer.names = {
            **NAMES,
            "job": queued[0]["ID"],
            "message": queued[0]["Message"]["MessageID"],
        }
        yield fuzzer
        fuzzer.connection.close()


@pytest.fixture(autouse=True)
def _nothing_fails(fuzzer: Fuzzer) -> Iterator[None]:
    """Demands that nothing fails in the broker, and that it still answers."""
    before = len(fuzzer.broker.errors())
    fuzzer.failures.clear()
    yield
    assert not fuzzer.failures
    assert fuzzer.broker.get("/readyz").status == 200
    events = [json.loads(line) for line in fuzzer.broker.errors()[before:].splitlines()]
    assert not [event for event in events if event["level"] == "error" or "exception" in event]


@pytest.mark.feature("F20")
def test_no_hostile_query_parameter_fails_in_the_broker(fuzzer: Fuzzer) -> None:
    for operation in fuzzer.operations():
        for name in fuzzer.parameters(operation, "query"):
            for what, text in TEXTS.items():
                query = f"{name}={text if '%' in text else quote(text, safe='')}"
                for further in (
                    "",
                    "&offset=0",
                    "&timestamp=0",
                    "&namespace=default/default&topic=raw",
                ):
                    if len(query) < 60_000:
                        asked = query + further
                        arrow = operation.path == "/v1/push"
                        headers = {"Content-Type": ARROW_STREAM} if arrow else {}
                        fuzzer.send(operation, f"{name}: {what}", query=asked, headers=headers)


@pytest.mark.feature("F20")
def test_no_hostile_path_segment_fails_in_the_broker(fuzzer: Fuzzer) -> None:
    for operation in fuzzer.operations():
        for name in fuzzer.parameters(operation, "path"):
            for what, text in TEXTS.items():
                if len(quote(text)) < 60_000:
                    fuzzer.send(operation, f"{name}: {what}", names={name: text})


def test_no_hostile_header_fails_in_the_broker(fuzzer: Fuzzer) -> None:
    for operation in fuzzer.operations():
        known = fuzzer.parameters(operation, "header")
        if not known and not operation.path.startswith("/v1/push"):
            continue
        for name in {*known, *FURTHER_HEADERS}:
            for what, text in TEXTS.items():
                value = text.replace("\0", "").encode().decode("latin-1").strip()
                fuzzer.send(operation, f"{name}: {what}", headers={name: value}, body=b"x")


def test_no_hostile_form_fails_in_the_broker(fuzzer: Fuzzer) -> None:
    for operation in fuzzer.operations():
        schema = fuzzer.content(operation).get(FORM, {}).get("schema", {})
        headers = {"Content-Type": FORM}
        for name in schema.get("properties", {}):
            for what, text in TEXTS.items():
                # The names that other requests use stay as they are.
                names = {"producer": "q", "channel": "d" if operation.path.count("/") == 2 else "c"}
                if operation.path.endswith("/consumer/{consumer}"):
                    names["consumer"] = "other"
                body = f"{name}={quote(text, safe='%')}".encode()
                fuzzer.send(operation, f"{name}: {what}", names=names, body=body, headers=headers)
        if schema:
            for what, data in BODIES.items():
                fuzzer.send(operation, what, names={"channel": "d"}, body=data, headers=headers)


@pytest.mark.feature("F20")
def test_no_hostile_json_fails_in_the_broker(fuzzer: Fuzzer) -> None:
    headers = {"Content-Type": JSON}
    for operation in fuzzer.operations():
        content = fuzzer.content(operation)
        if operation.method == "GET":
            continue
        for what, data in BODIES.items():
            fuzzer.send(operation, what, body=data, headers=headers)
        if JSON not in content:
            continue
        members = MEMBERS.get(operation.path.removesuffix("/{job}").rpartition("/")[2], ())
        schema = content[JSON].get("schema", {"properties": {name: {} for name in members}})
        for where, text in fuzzer.bodies(schema):
            fuzzer.send(operation, where, body=text.encode(), headers=headers)


@pytest.mark.feature("F25")
def test_no_hostile_row_fails_in_the_broker(fuzzer: Fuzzer) -> None:
    push = Operation("POST", "/v1/push", {})
    headers = {"Content-Type": JSON}
    for topic, members in (
        ("typed", ("n", "u", "f", "s")),
        ("parted", ("n",)),
        ("raw", ("payload", "payload_b64", "subject", "headers")),
    ):
        for name in members:
            for what, value in VALUES.items():
                base = '"n":1,' if topic == "typed" and name != "n" else ""
                rows = f'[{{{base}"{name}":{value}}}]'
                batch = f'{{"topic":"{topic}","data":{rows}}}'
                body = f'{{"namespace":"default/default","batches":[{batch}]}}'
                fuzzer.send(push, f"{topic}.{name}: {what}", body=body.encode(), headers=headers)
    for what, value in VALUES.items():
        tagged = f'{{"topic":"parted","partition":{{"Int64":{value}}},"data":[{{}}]}}'
        body = f'{{"namespace":"default/default","batches":[{tagged}]}}'
        fuzzer.send(push, f"partition: {what}", body=body.encode(), headers=headers)


def test_the_values_are_what_they_should_be() -> None:
    assert json.loads(VALUES["tagged float"]) == {"Int64": float("inf")}
    assert len(VALUES["nested lists"]) == 2 * DEEP
