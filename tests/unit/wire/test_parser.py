"""Parses the input of clients; bytes and errors are those of nats-server 2.15."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import parser
from penstock.wire.parser import (
    CONTROL_LINE_EXCEEDED,
    CONTROL_LINE_MAX,
    PAYLOAD_EXCEEDED,
    UNKNOWN_OPERATION,
    Beat,
    Broken,
    Connect,
    Event,
    Parser,
    Publishes,
    Subscribe,
    Unsubscribe,
)

PAYLOAD_MAX: Final = 1 << 20
BLOCK: Final = b"NATS/1.0\r\nA: b\r\n\r\n"
QUIET: Final = Broken(b"")
UNKNOWN: Final = Broken(UNKNOWN_OPERATION)


def receive(pieces: Iterable[bytes], payload_max: int = PAYLOAD_MAX) -> list[Event]:
    """All events, with consecutive runs of publishes joined."""
    parsing = Parser(payload_max)
    return joined([event for piece in pieces for event in parsing.receive(piece)])


def joined(events: Sequence[Event]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        if isinstance(event, Publishes):
            event = whole(event)
            if found and isinstance(last := found[-1], Publishes):
                found[-1] = Publishes(*(a + b for a, b in zip(last, event, strict=True)))  # type: ignore[operator]
                continue
        found.append(event)
    return found


def whole(run: Publishes) -> Publishes:
    """The run with explicit headers."""
    counts = {len(run.subjects), len(run.replies), len(run.payloads)}
    assert len(counts | ({len(run.headers)} if run.headers is not None else set())) == 1
    return run._replace(headers=run.headers or [b""] * len(run.payloads))


def publish(subject: bytes, payload: bytes, reply: bytes = b"", block: bytes = b"") -> Publishes:
    return Publishes([subject], [reply], [block], [payload])


@pytest.mark.feature("P01")
@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"PING\r\n", [Beat.PING]),
        (b"PONG\r\nPING\r\n", [Beat.PONG, Beat.PING]),
        (
            b"ping\r\nsub a 1\r\npub a 1\r\nx\r\n",
            [Beat.PING, Subscribe(b"a", b"", b"1"), publish(b"a", b"x")],
        ),
        (
            b"SUB foo.* 7\r\nPUB foo.bar 5\r\nhello\r\nPUB foo.bar rep 0\r\n\r\n",
            [
                Subscribe(b"foo.*", b"", b"7"),
                Publishes([b"foo.bar"] * 2, [b"", b"rep"], [b"", b""], [b"hello", b""]),
            ],
        ),
        (
            b"SUB  foo.*\t 7\r\nPUB \t foo.bar   5\r\nhello\r\n",
            [Subscribe(b"foo.*", b"", b"7"), publish(b"foo.bar", b"hello")],
        ),
        (
            b"SUB foo 7\nPUB foo 2\nhi\r\nPING\n",
            [Subscribe(b"foo", b"", b"7"), publish(b"foo", b"hi"), Beat.PING],
        ),
        (b"PUB s  0\r\n\r\n", [publish(b"s", b"")]),
        (b"SUB s  1\r\nUNSUB 3 \r\n", [Subscribe(b"s", b"", b"1"), Unsubscribe(b"3", None)]),
        (b"SUB foo q 1\r\n", [Subscribe(b"foo", b"q", b"1")]),
        (b"UNSUB 1 2\r\n", [Unsubscribe(b"1", 2)]),
        (b"UNSUB 1 -1\r\nUNSUB 1 abc\r\n", [Unsubscribe(b"1", None), Unsubscribe(b"1", None)]),
        (b"HPUB foo 18 20\r\n" + BLOCK + b"hi\r\n", [publish(b"foo", b"hi", b"", BLOCK)]),
        (b"HPUB foo r 18 18\r\n" + BLOCK + b"\r\n", [publish(b"foo", b"", b"r", BLOCK)]),
        (b"HPUB s r 0 1\r\nx\r\n", [publish(b"s", b"x", b"r")]),
        (b'CONNECT {"a": 1}\r\n', [Connect(b'{"a": 1}')]),
        (b"CONNECT {bad\r\n", [Connect(b"{bad")]),
        (b"+OK\r\nPING\r\n", [Beat.PING]),
        (b"INFO {}\r\nPING\r\n", [Beat.PING]),
        (b"PUB foo re.* 1\r\nx\r\n", [publish(b"foo", b"x", b"re.*")]),
        (b"PUB a..b 1\r\nx\r\n", [publish(b"a..b", b"x")]),
        (b"PUB a 8\r\nPUB b 1\r\n", []),
        (b"PUB a 7\r\nPUB b 1\r\n", [publish(b"a", b"PUB b 1")]),
        (b"PUB a 9\r\nPUB b 1\r\n\r\n", [publish(b"a", b"PUB b 1\r\n")]),
        (b"", []),
    ],
)
def test_client_operations_are_parsed(data: bytes, events: list[Event]) -> None:
    assert receive([data]) == events


@pytest.mark.feature("P01", "P19")
@pytest.mark.parametrize(
    ("data", "broken"),
    [
        (b"FOO\r\n", UNKNOWN),
        (b"MSG a 1 0\r\n\r\n", UNKNOWN),
        (b"\r\n\r\n", UNKNOWN),
        (b"PUB foo 2\r\nhello\r\n", UNKNOWN),
        (b"HPUB foo 18 18\r\n" + BLOCK + b"hi\r\n", UNKNOWN),
        (b"PUB\r\n", UNKNOWN),
        (b"SUB\r\n", UNKNOWN),
        (b"UNSUB\r\n", UNKNOWN),
        (b"PUB foo abc\r\nhello\r\n", QUIET),
        (b"PUB foo\r\n", QUIET),
        (b"PUB foo -1\r\n\r\n", QUIET),
        (b"PUB a b c 1\r\nx\r\n", QUIET),
        (b"PUB \r\n", QUIET),
        (b"HPUB foo 20 18\r\n" + BLOCK + b"hi\r\n", QUIET),
        (b"HPUB foo 20\r\n", QUIET),
        (b"SUB foo\r\n", QUIET),
        (b"SUB a b c d\r\n", QUIET),
        (b"UNSUB \r\n", QUIET),
        (b"UNSUB 1 2 3\r\n", QUIET),
        (b"CONNECT\r\n", QUIET),
        (b"-ERR 'x'\r\n", QUIET),
        (b"PUB foo 1048577\r\n", Broken(PAYLOAD_EXCEEDED)),
        (b"HPUB foo 0 1048577\r\n", Broken(PAYLOAD_EXCEEDED)),
        (b"PUB foo 999999999999\r\n", QUIET),
        (b"PUB " + b"a" * 5000 + b" 1\r\nx\r\n", Broken(CONTROL_LINE_EXCEEDED)),
        (b"SUB " + b"a" * 5000 + b" 1\r\n", Broken(CONTROL_LINE_EXCEEDED)),
        (b"x" * 5000, Broken(CONTROL_LINE_EXCEEDED)),
        (b"PUB " + b" " * 5000, Broken(CONTROL_LINE_EXCEEDED)),
    ],
)
def test_a_protocol_violation_ends_parsing(data: bytes, broken: Broken) -> None:
    assert receive([b"PING\r\n" + data + b"PING\r\n", b"PING\r\n"]) == [Beat.PING, broken]


@pytest.mark.feature("P01")
def test_events_before_an_error_are_returned() -> None:
    assert receive([b"PUB a 1\r\nx\r\nFOO\r\n"]) == [publish(b"a", b"x"), UNKNOWN]


@pytest.mark.feature("P19")
@pytest.mark.parametrize("verb", [b"SUB ", b"PUB "])
@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
def test_a_control_line_may_be_as_long_as_the_limit_and_no_longer(verb: bytes, cut: int) -> None:
    rest = b" 1" if verb == b"SUB " else b" 0"
    subject = b"a" * (CONTROL_LINE_MAX - len(verb) - len(rest))
    end = b"\r\n" if verb == b"SUB " else b"\r\n\r\n"

    def events(subject: bytes) -> list[Event]:
        data = verb + subject + rest + end
        return receive(data[at : at + cut] for at in range(0, len(data), cut))

    expected = Subscribe(subject, b"", b"1") if verb == b"SUB " else publish(subject, b"")
    assert events(subject) == [expected]
    assert events(subject + b"a") == [Broken(CONTROL_LINE_EXCEEDED)]


@pytest.mark.feature("P19")
def test_a_payload_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert receive([b"PUB a 10\r\n0123456789\r\n"], 10) == [publish(b"a", b"0123456789")]
    assert receive([b"PUB a 11\r\n"], 10) == [Broken(PAYLOAD_EXCEEDED)]
    data = b"HPUB a 18 20\r\n" + BLOCK + b"hi\r\n"
    assert receive([data], 20) == [publish(b"a", b"hi", b"", BLOCK)]
    assert receive([data], 19) == [Broken(PAYLOAD_EXCEEDED)]


def test_publishes_of_one_size_and_others_between_them_are_one_run() -> None:
    texts = [b"PUB s.%d i.%d 3\r\n%03d\r\n" % (n, n, n) for n in range(50)]
    texts[10] = b"pub  s.10 i.10\t3\r\n010\r\n"
    texts[20] = b"PUB s.20 2\r\n20\r\n"
    texts[30] = b"HPUB s.30 18 21\r\n" + BLOCK + b"030\r\n"
    (run,) = Parser(PAYLOAD_MAX).receive(b"".join(texts))
    assert isinstance(run, Publishes)
    odd = {20: b"", 30: b""}
    assert run.subjects == [b"s.%d" % n for n in range(50)]
    assert run.replies == [odd.get(n, b"i.%d" % n) for n in range(50)]
    assert run.payloads == [b"20" if n == 20 else b"%03d" % n for n in range(50)]
    assert run.headers == [BLOCK if n == 30 else b"" for n in range(50)]


@pytest.mark.parametrize("space", [b" ", b"  "])
def test_many_that_differ_in_their_subject_only_are_one_run(space: bytes) -> None:
    texts = [b"PUB s.%d%b4\r\n+ACK\r\n" % (n, space) for n in range(1500)]
    texts[500] = b"PUB s.500 r 4\r\n+ACK\r\n"
    texts[600] = b"PUB s.600 4\r\n-NAK\r\n"
    texts[700] = b"PUB  s.700\t4\r\n+ACK\r\n"
    texts[800] = b"HPUB s.800 18 22\r\n" + BLOCK + b"+ACK\r\n"
    texts[900] = b"PUB %b 4\r\n+ACK\r\n" % (b"s" * 3000)
    (run,) = Parser(PAYLOAD_MAX).receive(b"".join(texts))
    assert isinstance(run, Publishes)
    assert run.subjects == [b"s" * 3000 if n == 900 else b"s.%d" % n for n in range(1500)]
    assert run.replies == [b"r" if n == 500 else b"" for n in range(1500)]
    assert run.payloads == [b"-NAK" if n == 600 else b"+ACK" for n in range(1500)]
    assert run.headers == [BLOCK if n == 800 else b"" for n in range(1500)]


def test_many_that_are_the_same_each_have_their_reply() -> None:
    (run,) = Parser(PAYLOAD_MAX).receive(b"PUB a r 1\r\nx\r\n" * 9)
    assert run == Publishes([b"a"] * 9, [b"r"] * 9, None, [b"x"] * 9)


@pytest.mark.parametrize("wrong", [b"PUB  4\r\n+ACK\r\n", b"PUB a b c 4\r\n+ACK\r\n"])
def test_an_error_among_many_that_differ_in_their_subject_only_is_found(wrong: bytes) -> None:
    acks = b"PUB a 4\r\n+ACK\r\n" * 5
    before, broken = receive([acks + wrong + acks])
    assert [before] == receive([acks])
    assert broken == QUIET


def test_a_run_without_headers_has_none() -> None:
    (run,) = Parser(PAYLOAD_MAX).receive(b"PUB a 1\r\nx\r\n" * 9)
    assert isinstance(run, Publishes)
    assert run.headers is None


def test_an_error_among_many_of_one_size_is_found() -> None:
    data = b"PUB a 2\r\nhi\r\n" * 5
    assert receive([data + b"PUB a 2\r\nhiX\n" + data])[1] == UNKNOWN
    assert receive([data + b"PUB a 2\r\nhi"]) == receive([data])


def test_a_long_payload_is_parsed_again_only_when_it_can_be_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    parse = Parser._parse

    def counted(self: Parser, data: bytes) -> int:
        looks.append(len(data))
        return parse(self, data)

    monkeypatch.setattr(Parser, "_parse", counted)
    payload = b"x" * 100_000
    parsing = Parser(PAYLOAD_MAX)
    data = b"PUB a 100000\r\n" + payload + b"\r\n"
    events = [
        event for at in range(0, len(data), 1000) for event in parsing.receive(data[at:][:1000])
    ]
    assert joined(events) == [publish(b"a", payload)]
    assert len(looks) == 2


SUBJECTS: Final = st.sampled_from([b"a", b"a.b", b"$JS.API.INFO", b"x" * 300])
REPLIES: Final = st.sampled_from([b"", b"", b"_INBOX.x.1"])
SIZES: Final = st.sampled_from([0, 1, 1, 2, 2, 2, 64])
SPACES: Final = st.sampled_from([b" ", b" ", b" ", b"\t", b"  ", b"  "])
ENDS: Final = st.sampled_from([b"\r\n", b"\r\n", b"\n"])


@st.composite
def operations(draw: st.DrawFn) -> bytes:
    """One operation of a client, usually a publish, sometimes an invalid one."""
    space, end, subject = draw(SPACES), draw(ENDS), draw(SUBJECTS)
    kind = draw(st.sampled_from(["pub"] * 6 + ["hpub", "sub", "unsub", "ping", "connect", "bad"]))
    if kind == "pub":
        size = draw(SIZES)
        words = [draw(st.sampled_from([b"PUB", b"PUB", b"pub"])), subject, draw(REPLIES)]
        payload = draw(st.one_of(st.just(b"+ACK"[:size]), st.binary(min_size=size, max_size=size)))
        size = len(payload)
        return space.join([*filter(None, words), b"%d" % size]) + end + payload + b"\r\n"
    if kind == "hpub":
        payload = draw(st.binary(max_size=3))
        block = draw(st.sampled_from([b"", BLOCK]))
        sizes = b"%d %d" % (len(block), len(block) + len(payload))
        return space.join([b"HPUB", subject, sizes]) + end + block + payload + b"\r\n"
    lines = {
        "sub": [b"SUB", subject, b"q", b"1"],
        "unsub": [b"UNSUB", b"1", b"5"],
        "ping": [b"PING"],
        "connect": [b"CONNECT", b'{"verbose":false}'],
        "bad": draw(st.sampled_from([[b"FOO"], [b"PUB", b"a"], [b""], [b"-ERR", b"x"]])),
    }
    return space.join(lines[kind]) + end


@st.composite
def cut(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    """Bytes, and the same bytes in pieces."""
    text = draw(data)
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@pytest.mark.feature("P01")
@given(cut(st.lists(operations(), max_size=30).map(b"".join)))
def test_how_the_bytes_are_cut_never_changes_the_events(sent: tuple[bytes, list[bytes]]) -> None:
    data, pieces = sent
    assert receive(pieces) == receive([data]) == receive(bytes([byte]) for byte in data)


@pytest.mark.feature("P19")
@given(
    cut(
        st.lists(
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [b"PUB ", b"HPUB ", b"SUB ", b" ", b"\r\n", b"\n", b"1", b"99", b"a", b"\t"]
                ),
                operations(),
            ),
            max_size=40,
        ).map(b"".join)
    )
)
def test_no_input_raises_and_the_buffer_is_bounded(sent: tuple[bytes, list[bytes]]) -> None:
    data, pieces = sent
    parsing = Parser(100)
    events: list[Event] = []
    for piece in pieces:
        events += parsing.receive(piece)
        assert sum(map(len, parsing._pieces)) <= CONTROL_LINE_MAX + 2 + 100 + 2
    assert joined(events) == receive([data], 100)
    broken = [place for place, event in enumerate(events) if isinstance(event, Broken)]
    assert broken in ([], [len(events) - 1])
    for event in events:
        if isinstance(event, Publishes):
            assert all(map(event.subjects.__getitem__, range(len(event.payloads))))
            assert max(map(len, event.payloads)) <= 100


@pytest.mark.feature("P19")
@pytest.mark.parametrize(
    "data",
    [
        b"x" * (1 << 20),
        b" " * (1 << 20),
        b"PUB " + b"a" * (1 << 20),
        b"PUB " + b" " * (1 << 20),
        b"PUB a" + b" " * (1 << 20) + b"b" + b" " * (1 << 20),
        b"HPUB a 1" + b" " * (1 << 20) + b"1" + b" " * (1 << 20),
        b"SUB " + b"a " * (1 << 19) + b"\r\n",
    ],
    ids=lambda data: str(data[:9]),
)
def test_a_megabyte_of_nonsense_is_refused_without_long_thought(data: bytes) -> None:
    # Any pattern that tried every way to read it would take hours.
    assert receive([data]) == [Broken(CONTROL_LINE_EXCEEDED)]


def test_patterns_of_sizes_are_few() -> None:
    parsing = Parser(PAYLOAD_MAX)
    for size in range(200):
        parsing.receive((b"PUB a %d\r\n" % size + b"x" * size + b"\r\n") * 4)
    assert parser._sized.cache_info().currsize <= 64
