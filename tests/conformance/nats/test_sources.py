"""Streams with sources, asked of nats-server and of Penstock: both copy alike."""

from __future__ import annotations

import re
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import nats
import pytest
from nats.js.api import StreamConfig, StreamSource, SubjectTransform

from tests.conformance.nats.both import server
from tests.conformance.nats.wire import ANSWER_SECONDS, Wire, api_request
from tests.eventually import eventually
from tests.servers.nats import OURS, THEIRS, NatsServer

__all__ = ["server"]

SETTLE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
IDENTITY: Final = re.compile(rb"(Nats-Stream-Source: [^ ]+ \d+(?: [^ ]+){3}) [0-9A-Za-z]{8}\r\n")

Scenario = Callable[["Session"], list[Any]]


class Session:
    """A server and a connection to it."""

    def __init__(self, running: NatsServer) -> None:
        self._server = running
        self._connect()

    def _connect(self) -> None:
        self.wire = Wire(self._server.port)
        self.wire.send(b"SUB in 1\r\n")

    def restart(self) -> None:
        """As after a crash."""
        self.wire.close()
        self._server.close()
        self._server.start()
        self._connect()

    def api(self, subject: str, body: object = None) -> dict[str, Any]:
        return api_request(self.wire, subject, body)

    def create(self, name: str, **config: object) -> dict[str, Any]:
        return self._made(self.api(f"STREAM.CREATE.{name}", {"name": name, **config}))

    def update(self, name: str, **config: object) -> dict[str, Any]:
        return self._made(self.api(f"STREAM.UPDATE.{name}", {"name": name, **config}))

    def _made(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The error, or the configuration without what tells of versions."""
        if "error" in answer:
            error: dict[str, Any] = answer["error"]
            return error
        return {key: value for key, value in answer["config"].items() if key != "metadata"}

    def publish(self, subject: str, payload: bytes = b"x", *fields: str) -> bytes:
        lines = ["NATS/1.0", *fields, "", ""]
        block = "\r\n".join(lines).encode() if fields else b""
        self.wire.take()
        self.wire.publish(subject, payload, "in", block)
        assert self.wire.read_until(1, ANSWER_SECONDS)
        return self.wire.take()[0].payload

    def copied(self, name: str, last_seq: int) -> list[Any]:
        """All that is in a stream once it has come so far."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.state(name)["last_seq"] < last_seq:
            assert time.monotonic() < deadline, self.state(name)
            time.sleep(POLL_SECONDS)
        return self.contents(name)

    def state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self.api(f"STREAM.INFO.{name}")["state"]
        return state

    def contents(self, name: str) -> list[Any]:
        state = self.state(name)
        found: list[Any] = [(state["first_seq"], state["last_seq"])]
        for seq in range(max(state["first_seq"], 1), state["last_seq"] + 1):
            answer = self.api(f"STREAM.MSG.GET.{name}", {"seq": seq})
            if "message" in answer:
                message = answer["message"]
                block = IDENTITY.sub(rb"\1 <identity>\r\n", b64decode(message.get("hdrs", "")))
                found.append((seq, message["subject"], b64decode(message.get("data", "")), block))
        return found

    def sources(self, name: str) -> list[dict[str, Any]]:
        """What is told about the sources of a stream, but for the times."""
        infos = self.api(f"STREAM.INFO.{name}")["sources"]
        plain = [{**info, "active": info["active"] >= 0} for info in infos]
        return sorted(plain, key=str)

    def fill(self, name: str, count: int) -> None:
        """A stream of the subjects `name.>`, with so many messages in turn to three of them."""
        self.create(name, subjects=[f"{name}.>"])
        for number in range(count):
            self.publish(f"{name}.{number % 3}", b"%d" % number)


@pytest.fixture
def both(tmp_path: Path) -> Callable[[Scenario], list[Any]]:
    def run(scenario: Scenario) -> list[Any]:
        answers = []
        for program in (THEIRS, OURS):
            directory = tmp_path / program
            directory.mkdir()
            running = NatsServer(directory, program)
            running.start()
            try:
                session = Session(running)
                answers.append(scenario(session))
                session.wire.close()
            finally:
                running.close()
        assert answers[1] == answers[0]
        return answers[0]

    return run


Both = Callable[[Scenario], list[Any]]


def test_copies_tell_where_they_came_from(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 4)
        session.publish(
            "o.1", b"h", "X: y", "Nats-Msg-Id: a", "Nats-Expected-Stream: o", "Nats-Rollup-No: 1"
        )
        session.publish("o.1", b"h", "Nats-Expected-Last-Sequence: 5")
        transforms = [{"src": "o.1", "dest": "t.one"}, {"src": "o.2", "dest": ""}]
        made = [
            session.create("ALL", sources=[{"name": "o"}]),
            session.create("SOME", sources=[{"name": "o", "filter_subject": "o.1"}]),
            session.create("OTHER", sources=[{"name": "o", "subject_transforms": transforms}]),
            session.create("LATE", sources=[{"name": "o", "opt_start_seq": 5}]),
        ]
        copies = [session.copied(name, n) for name, n in (("ALL", 6), ("SOME", 3), ("OTHER", 4))]
        # A copy of copies tells of the last step only.
        session.create("CHAIN", sources=[{"name": "OTHER"}])
        copies += [session.copied("CHAIN", 4), session.copied("LATE", 2)]
        infos = [session.sources(name) for name in ("ALL", "SOME", "OTHER", "CHAIN", "LATE")]
        return [made, copies, infos]

    _, copies, _ = both(scenario)
    assert copies[0][1] == (
        1,
        "o.0",
        b"0",
        b"NATS/1.0\r\nNats-Stream-Source: o 1 > > o.0 <identity>\r\n\r\n",
    )
    assert copies[2][1][1:] == (
        "t.one",
        b"1",
        b"NATS/1.0\r\nNats-Stream-Source: o 2 o.1\x0co.2 t.one\x0c> o.1 <identity>\r\n\r\n",
    )


REFUSED: Final[dict[str, list[object]]] = {
    "a duplicate": [{"name": "o"}, {"name": "o", "filter_subject": ">"}],
    "no name": [{"name": ""}],
    "a name with a dot": [{"name": "a.b"}],
    "a filter that is none": [{"name": "o", "filter_subject": "o..x"}],
    "filter and transforms": [
        {"name": "o", "filter_subject": "o.1", "subject_transforms": [{"src": "a", "dest": "b"}]}
    ],
    "a transform of no subject": [
        {"name": "o", "subject_transforms": [{"src": "o..1", "dest": "x"}]}
    ],
    "a wildcard in a destination": [
        {"name": "o", "subject_transforms": [{"src": "o.*", "dest": "x.*"}]}
    ],
    "a destination that loses the tail": [
        {"name": "o", "subject_transforms": [{"src": ">", "dest": "x"}]}
    ],
    "a destination with a space": [
        {"name": "o", "subject_transforms": [{"src": "o.*", "dest": "x y"}]}
    ],
    "transforms that overlap": [
        {
            "name": "o",
            "subject_transforms": [{"src": "o.>", "dest": ""}, {"src": "o.1", "dest": ""}],
        }
    ],
    "itself": [{"name": "X"}],
    "a field that is not known": [{"name": "o", "zz": 1}],
}


def test_sources_are_refused_alike(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 1)
        session.create("LARGE", subjects=["large"], max_msg_size=1000)
        session.create("S", sources=[{"name": "o"}])
        session.create("M", mirror={"name": "S"})
        large = [{"name": "LARGE"}]
        return [
            *(session.create("X", sources=sources) for sources in REFUSED.values()),
            session.create("X", sources=large, max_msg_size=10),
            session.create("X", sources=large, allow_msg_schedules=True),
            session.create("X", sources=large, mirror={"name": "o"}),
            session.create("X", sources=large, mirror_direct=True),
            session.update("o", subjects=["o.>"], sources=[{"name": "S"}]),
            session.update("o", subjects=["o.>"], sources=[{"name": "M"}]),
            session.update("S", sources=[{"name": "o"}, {"name": "o"}]),
        ]

    for answer in both(scenario):
        assert "err_code" in answer


ACCEPTED: Final[list[dict[str, object]]] = [
    {"sources": [{"name": "NOT-THERE"}]},
    {"sources": [{"name": "o", "filter_subject": "o.1"}, {"name": "o", "filter_subject": "o.>"}]},
    {"sources": [{"name": "o", "opt_start_seq": 2, "opt_start_time": "2020-01-01T00:00:00Z"}]},
    {"sources": [{"name": "o", "subject_transforms": [{"src": "", "dest": "x.>"}]}]},
    {
        "sources": [
            {
                "name": "o",
                "subject_transforms": [
                    {"src": "o.*.a", "dest": "x.$1"},
                    {"src": "o.1.*", "dest": "y.{{wildcard(1)}}"},
                ],
            }
        ]
    },
    {"sources": [{"name": "X", "filter_subject": "y"}], "subjects": ["x"]},
    {"sources": [{"name": "o"}], "duplicate_window": 1_000_000_000, "first_seq": 7},
    {"sources": [{"name": "o"}], "retention": "workqueue", "discard": "new", "max_msgs": 5},
    {"sources": []},
]


def test_configurations_with_sources_are_shown_alike(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 1)
        shown = []
        for config in ACCEPTED:
            shown.append(session.create("X", **config))
            session.api("STREAM.DELETE.X")
        return shown

    for answer in both(scenario):
        assert "err_code" not in answer


def test_a_source_that_does_not_exist_is_told_and_copied_once_it_does(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.create("S", sources=[{"name": "o"}])
        deadline = time.monotonic() + SETTLE_SECONDS
        while "error" not in (infos := session.sources("S"))[0]:
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)
        session.fill("o", 2)
        return [infos, session.copied("S", 2)]

    both(scenario)


def test_a_message_id_is_stored_once_within_the_window(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 0)
        session.fill("p", 0)
        session.create("W", sources=[{"name": "o"}], subjects=["w"], duplicate_window=10**11)
        session.create("NONE", sources=[{"name": "o"}, {"name": "p"}])
        session.publish("o.1", b"a", "Nats-Msg-Id: 1")
        session.copied("NONE", 1)
        session.publish("p.1", b"b", "Nats-Msg-Id: 1")
        session.copied("W", 1)
        sources = [{"name": "o"}, {"name": "p"}]
        session.update("W", sources=sources, subjects=["w"], duplicate_window=10**11)
        session.publish("p.1", b"c", "Nats-Msg-Id: 2")
        copies = [session.copied("W", 2), session.copied("NONE", 3)]
        return [copies, session.publish("w", b"d", "Nats-Msg-Id: 2")]

    copies, answer = both(scenario)
    assert [row[2] for row in copies[0][1:]] == [b"a", b"c"]
    assert b"duplicate" in answer


def test_roll_ups_hold_where_the_stream_allows_them(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.create("h", subjects=["h.>"], allow_rollup_hdrs=True, allow_msg_ttl=True)
        session.create("KEEPS", sources=[{"name": "h"}])
        session.create("ROLLS", sources=[{"name": "h"}], allow_rollup_hdrs=True)
        found = []
        for number, field in enumerate(("A: 1", "A: 1", "Nats-Rollup: sub", "Nats-TTL: 1h"), 1):
            subject = "h.2" if number == 4 else "h.1"
            session.publish(subject, b"%d" % number, field)
            found.append([session.copied("KEEPS", number), session.copied("ROLLS", number)])
        session.publish("h.3", b"5", "Nats-Rollup: all")
        return [*found, session.copied("KEEPS", 5), session.copied("ROLLS", 5)]

    *_, kept, rolled = both(scenario)
    assert [row[0] for row in kept[1:]] == [1, 2, 3, 4, 5]
    assert [row[0] for row in rolled[1:]] == [5]


def test_the_limits_of_the_copying_stream_hold(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 5)
        session.create("OLD", sources=[{"name": "o"}], max_msgs=2, first_seq=100)
        session.create("EACH", sources=[{"name": "o"}], max_msgs_per_subject=1)
        session.create("NEW", sources=[{"name": "o"}], max_msgs=2, discard="new")
        found = [session.copied("OLD", 104), session.copied("EACH", 5), session.copied("NEW", 2)]
        # What a full stream refuses comes once there is room.
        session.api("STREAM.MSG.DELETE.NEW", {"seq": 1})
        found.append(session.copied("NEW", 3))
        session.create("SMALL", sources=[{"name": "o"}], max_msg_size=60)
        found.append(session.copied("SMALL", 5))
        return found

    both(scenario)


def test_copying_goes_on_after_a_crash_and_after_a_purge(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 3)
        session.create("S", sources=[{"name": "o"}])
        session.copied("S", 3)
        session.restart()
        session.publish("o.1", b"after")
        found = [session.copied("S", 4)]
        session.api("STREAM.PURGE.S")
        session.restart()
        session.publish("o.1", b"purged")
        return [*found, session.copied("S", 5), session.sources("S")]

    both(scenario)


def test_sources_are_added_and_removed_by_updates(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 2)
        session.fill("p", 2)
        session.create("S", sources=[{"name": "o"}])
        session.copied("S", 2)
        made = [session.update("S", sources=[{"name": "o"}, {"name": "p"}])]
        session.copied("S", 4)
        made.append(session.update("S", sources=[{"name": "p"}]))
        session.publish("o.1", b"while removed")
        session.publish("p.1", b"while removed")
        session.copied("S", 5)
        made.append(session.update("S", sources=[{"name": "o"}, {"name": "p"}]))
        found = [session.copied("S", 6), session.sources("S")]
        made.append(session.update("S", sources=[], subjects=["s"]))
        return [made, found, session.publish("s", b"own"), session.contents("S")]

    both(scenario)


def test_subjects_transforms_and_republishing_of_the_copying_stream_hold(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 0)
        session.create(
            "S",
            subjects=["own.>"],
            sources=[{"name": "o", "subject_transforms": [{"src": "o.>", "dest": "g.>"}]}],
            subject_transform={"src": "g.>", "dest": "k.>"},
            republish={"src": ">", "dest": "again.>"},
        )
        session.wire.send(b"SUB again.> 7\r\n")
        session.publish("own.1", b"mine")
        session.wire.take()
        session.wire.publish("o.1", b"1")
        assert session.wire.read_until(1, ANSWER_SECONDS, sid="7")
        (frame,) = [frame for frame in session.wire.take() if frame.sid == "7"]
        session.wire.send(b"UNSUB 7\r\n")
        return [frame.subject, frame.payload, session.copied("S", 2)]

    both(scenario)


def test_a_work_queue_gives_its_messages_to_the_stream_that_copies_it(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.create("w", subjects=["w.>"], retention="workqueue")
        session.create("i", subjects=["i.>"], retention="interest")
        for number in range(4):
            session.publish(f"w.{number % 2}", b"%d" % number)
        session.create("S", sources=[{"name": "w", "filter_subject": "w.1"}])
        session.create("T", sources=[{"name": "i"}])
        found = [session.copied("S", 2)]
        deadline = time.monotonic() + SETTLE_SECONDS
        while session.sources("T")[0]["active"] is False:
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)
        session.publish("i.1", b"interest")
        found.append(session.copied("T", 1))
        for name, left in (("w", 2), ("i", 0)):
            while session.state(name)["messages"] > left:
                assert time.monotonic() < deadline
                time.sleep(POLL_SECONDS)
            found.append(session.contents(name))
        return found

    both(scenario)


def test_publishers_may_not_claim_to_be_a_source(both: Both) -> None:
    def scenario(session: Session) -> list[Any]:
        session.fill("o", 0)
        return [
            session.publish("o.1", b"", "Nats-Stream-Source: o 1 > > o.1 abcdefgh"),
            session.publish("o.1", b"", "Nats-Stream-Source: "),
        ]

    refused, taken = both(scenario)
    assert b"10227" in refused
    assert b'"seq":1' in taken


# -- unmodified clients


@pytest.mark.feature("P15")
async def test_nats_py_makes_and_reads_a_stream_with_sources(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    context = client.jetstream()
    await context.add_stream(name="a", subjects=["a.>"])
    await context.add_stream(name="b", subjects=["b.>"])
    transform = SubjectTransform(src="b.>", dest="from-b.>")
    sources = [
        StreamSource(name="a", filter_subject="a.1"),
        StreamSource(name="b", subject_transforms=[transform]),
    ]
    await context.add_stream(StreamConfig(name="all", subjects=["own.>"], sources=sources))
    for number in range(3):
        await context.publish(f"a.{number}", b"a%d" % number)
        await context.publish(f"b.{number}", b"b%d" % number)
        await context.publish(f"own.{number}", b"own%d" % number)

    async def copied() -> bool:
        return (await context.stream_info("all")).state.messages == 7

    await eventually(copied)
    reader = await context.pull_subscribe("", durable="r", stream="all")
    messages = await reader.fetch(7, timeout=20)
    by_stream: dict[str, list[bytes]] = {}
    for message in messages:
        told = (message.headers or {}).get("Nats-Stream-Source", "own").split(" ")[0]
        by_stream.setdefault(told, []).append(message.data)
        await message.ack()
    assert by_stream == {
        "a": [b"a1"],
        "b": [b"b0", b"b1", b"b2"],
        "own": [b"own0", b"own1", b"own2"],
    }
    assert {message.subject for message in messages if message.data.startswith(b"b")} == {
        "from-b.0",
        "from-b.1",
        "from-b.2",
    }
    config = (await context.stream_info("all")).config
    assert config.sources is not None
    assert [source.name for source in config.sources] == ["a", "b"]
    await client.close()


@pytest.mark.feature("P17")
async def test_a_bucket_reads_the_keys_of_another_that_it_sources(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    context = client.jetstream()
    origin = await context.create_key_value(bucket="origin")
    # nats-py has no field for the sources of a bucket: a bucket is a stream.
    transform = SubjectTransform(src="$KV.origin.>", dest="$KV.merged.>")
    await context.add_stream(
        StreamConfig(
            name="KV_merged",
            subjects=["$KV.merged.>"],
            max_msgs_per_subject=1,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            sources=[StreamSource(name="KV_origin", subject_transforms=[transform])],
        )
    )
    merged = await context.key_value("merged")
    await origin.put("kept", b"1")
    await origin.put("kept", b"2")
    await origin.put("gone", b"3")
    await origin.purge("gone")
    await merged.put("own", b"4")

    async def copied() -> bool:
        return set(await merged.keys()) == {"kept", "own"}

    await eventually(copied)
    assert (await merged.get("kept")).value == b"2"
    await client.close()
