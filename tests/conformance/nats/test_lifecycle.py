"""What a server does at its edges, asked of nats-server and of Penstock: both answer alike."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import cast

import pytest

from tests.conformance.nats.normal import Normal
from tests.conformance.nats.wire import ANSWER_SECONDS, USUAL, Frame, Wire, api_request
from tests.servers.nats import OURS, THEIRS, NatsServer

Scenario = Callable[["Session"], list[str]]


class Session:
    """A server, and the connections to it that a scenario opens."""

    def __init__(self, server: NatsServer, connections: ExitStack) -> None:
        self.server, self._connections = server, connections

    def wire(self, options: str | None = USUAL) -> Wire:
        return self._connections.enter_context(closing(Wire(self.server.port, options)))

    def connecting(self, **options: object) -> list[str]:
        """The answers to a CONNECT with these options more, and to the PING behind it."""
        wire = self.wire(json.dumps({**json.loads(USUAL), **options}))
        wire.settle()
        return _lines(wire.take())


def _both(
    tmp_path: Path,
    scenario: Scenario,
    options: Sequence[str] = ("--jetstream",),
    config: str = "",
) -> list[str]:
    """What both servers answered, which must be the same."""
    answers = []
    for program in (THEIRS, OURS):
        directory = tmp_path / program
        directory.mkdir()
        file = directory / "nats.conf"
        file.write_text(config)
        server = NatsServer(directory, program, (*options, "--config", str(file)))
        server.start()
        try:
            with ExitStack() as connections:
                answers.append(scenario(Session(server, connections)))
        finally:
            server.close()
    assert answers[1] == answers[0]
    return answers[0]


def _lines(frames: Sequence[Frame]) -> list[str]:
    normal = Normal("")
    return [normal.line(frame) for frame in frames]


def _until_closed(wire: Wire) -> list[str]:
    while not wire.closed and wire.read_until(1_000, ANSWER_SECONDS):
        pass
    return _lines(wire.take())


def test_a_waiting_pull_is_told_that_the_server_stops(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        api_request(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        config = {"durable_name": "d", "ack_policy": "explicit"}
        body = {"stream_name": "S", "config": config}
        api_request(wire, "CONSUMER.DURABLE.CREATE.S.d", body)
        wire.send(b"SUB in 1\r\n")
        wire.publish(
            "$JS.API.CONSUMER.MSG.NEXT.S.d",
            b'{"batch":3,"expires":9000000000,"max_bytes":500}',
            "in",
        )
        wire.settle()
        wire.take()
        session.server.signal(signal.SIGTERM)
        told = _until_closed(wire)
        session.server.wait()
        return told

    told = _both(tmp_path, scenario)
    assert "409 Server Shutdown" in told[0]
    assert told[-1] == "closed"


@pytest.mark.feature("P18")
def test_a_consumer_goes_on_after_a_restart(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        api_request(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        body = {"stream_name": "S", "config": {"durable_name": "d", "ack_policy": "explicit"}}
        api_request(wire, "CONSUMER.DURABLE.CREATE.S.d", body)
        wire.send(b"SUB in 1\r\nSUB in.* 2\r\n")
        for number in range(3):
            wire.publish("s", b"%d" % number, "in.ack")
            wire.read_until(1, ANSWER_SECONDS)
            wire.take()
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", b'{"batch":2}', "in")
        wire.read_until(2, ANSWER_SECONDS)
        first, _ = wire.take()
        wire.publish(first.reply, b"+ACK", "in.acked")
        wire.read_until(1, ANSWER_SECONDS)
        session.server.stop()
        session.server.start()
        again = session.wire()
        info = api_request(again, "CONSUMER.INFO.S.d")
        kept = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
        return [json.dumps(_without_times(info[name])) for name in kept]

    told = _both(tmp_path, scenario)
    assert told == [
        '{"consumer_seq": 2, "stream_seq": 2}',
        '{"consumer_seq": 1, "stream_seq": 1}',
        "1",
        "0",
        "1",
    ]


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if name != "last_active"}
    return value


def test_lame_ducks_are_announced(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        wire.settle()
        wire.take()
        session.server.signal(signal.SIGUSR2)
        wire.read_until(1, ANSWER_SECONDS)
        return _lines(wire.take()[:1])

    (told,) = _both(tmp_path, scenario)
    assert '"ldm":true' in told


def test_users_are_asked_for_their_password(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        greeting = _lines(session.wire(None).greeting)
        right = session.connecting(user="ada", **{"pass": "secret"})
        wrong = session.connecting(user="ada", **{"pass": "guess"})
        nobody = session.connecting()
        return [*greeting, "--", *right, "--", *wrong, "--", *nobody]

    told = _both(tmp_path, scenario, ("--user", "ada", "--pass", "secret"))
    assert '"auth_required":true' in told[0]
    assert told.count("-ERR 'Authorization Violation'") == 2


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        right = session.connecting(auth_token="t0ken")
        wrong = session.connecting(auth_token="t0kem")
        return [*right, "--", *wrong]

    told = _both(tmp_path, scenario, config="authorization { token: t0ken }")
    assert told.count("-ERR 'Authorization Violation'") == 1


def test_who_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        return _until_closed(session.wire(None))

    told = _both(tmp_path, scenario, ("--auth", "t"))
    assert told == ["-ERR 'Authentication Timeout'", "closed"]


@pytest.mark.parametrize("apart", [False, True])
def test_without_streams_nobody_answers_for_them(tmp_path: Path, apart: bool) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        wire.send(b"SUB in 1\r\nSUB *.ACK.S.> 2\r\n")
        for subject in ("$JS.API.INFO", "$JS.ACK.T.d.1.1.1.1.0", "$JS.ACK.S.d.1.1.1.1.0"):
            wire.publish(subject, b"", "in")
            if apart:
                wire.settle()
        wire.settle()
        return [line for line in _lines(wire.take()) if not line.startswith("INFO")]

    assert _both(tmp_path, scenario, ()) == [
        "HMSG in 1 [NATS/1.0 503 | Nats-Subject: $JS.API.INFO]",
        "HMSG in 1 [NATS/1.0 503 | Nats-Subject: $JS.ACK.T.d.1.1.1.1.0]",
        "MSG $JS.ACK.S.d.1.1.1.1.0 2 in",
    ]


def test_without_streams_the_greeting_offers_none(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        return _lines(session.wire().greeting)

    assert '"jetstream"' not in _both(tmp_path, scenario, ())[0]


@pytest.mark.feature("P11")
def test_who_listens_to_acks_hears_them_and_they_count(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire, listener = session.wire(), session.wire()
        api_request(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        config = {"durable_name": "d", "ack_policy": "explicit"}
        api_request(wire, "CONSUMER.CREATE.S.d", {"stream_name": "S", "config": config})
        listener.send(b"SUB $JS.ACK.> 9\r\nSUB $JS.API.CONSUMER.MSG.NEXT.S.no 8\r\n")
        listener.settle()
        listener.take()
        wire.send(b"SUB got 1\r\nSUB in 2\r\n" + b"PUB s 0\r\n\r\n" * 2)
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", b"2", "got")
        wire.read_until(2, ANSWER_SECONDS, sid="1")
        first, second = (frame.reply for frame in wire.take() if frame.sid == "1")
        wire.publish(first, b"")
        wire.publish(second, b"+ACK", "in")
        wire.read_until(1, ANSWER_SECONDS, sid="2")
        wire.publish("$JS.ACK.S.no.1.1.1.1.0", b"", "in")
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.no", b"", "in")
        wire.settle()
        listener.settle()
        heard = [f"{frame.sid} {frame.payload!r} {frame.reply}" for frame in listener.take()]
        answered = [line for line in _lines(wire.take()) if not line.startswith("INFO")]
        info = api_request(wire, "CONSUMER.INFO.S.d")
        floor = cast(dict[str, int], info["ack_floor"])
        return [*heard, "--", *answered, f"floor {floor['stream_seq']}"]

    assert _both(tmp_path, scenario) == [
        "9 b'' ",
        "9 b'+ACK' in",
        "9 b'' in",
        "8 b'' in",
        "--",
        "MSG in 2",
        "floor 2",
    ]


def test_a_connection_that_gives_no_sign_is_closed(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        wire.settle()
        wire.take()
        wire.answers_pings = False
        return _until_closed(wire)

    told = _both(tmp_path, scenario, config='ping_interval: "150ms", ping_max: 2')
    assert told == ["-ERR 'Stale Connection'", "closed"]


def test_so_many_connections_and_subscriptions_and_no_more(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        wire.send(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nPUB b 0\r\n\r\nPUB c 0\r\n\r\n")
        wire.settle()
        second = session.wire(None)
        return [*_lines(wire.take()), "--", *_lines(second.greeting), *_until_closed(second)]

    told = _both(tmp_path, scenario, config="max_connections: 1, max_subscriptions: 2")
    assert "-ERR 'maximum subscriptions exceeded'" in told
    assert "-ERR 'maximum connections exceeded'" in told


def test_the_server_asks_for_a_sign_soon_after_the_start(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        wire.settle()
        deadline = time.monotonic() + 3 * ANSWER_SECONDS
        while not wire.server_pings and time.monotonic() < deadline:
            wire.read_until(1_000, 0.1)
        return [str(wire.server_pings)]

    assert _both(tmp_path, scenario) == ["1"]


def test_members_of_a_group_share_and_others_get_everything(tmp_path: Path) -> None:
    def scenario(session: Session) -> list[str]:
        wire = session.wire()
        wire.send(b"SUB a q 1\r\nSUB a q 2\r\nSUB a r 3\r\nSUB a 4\r\n" + b"PUB a 0\r\n\r\n" * 200)
        wire.settle()
        sids = [frame.sid for frame in wire.take() if frame.kind == "MSG"]
        shared = sids.count("1") + sids.count("2")
        both = sids.count("1") > 0 and sids.count("2") > 0
        return [f"{shared} {both} {sids.count('3')} {sids.count('4')}"]

    assert _both(tmp_path, scenario) == ["200 True 200 200"]
