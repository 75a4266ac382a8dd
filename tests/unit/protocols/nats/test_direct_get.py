import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.protocols.nats.jetstream import direct_get
from penstock.protocols.nats.jetstream.direct_get import sequences_of
from tests.broker.jetstream import Asker, ReceivedMessage, Streaming
from tests.eventually import eventually

GET = b"$JS.API.DIRECT.GET."
BLOCK = b"NATS/1.0\r\nX: y\r\n\r\n"
NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"


async def _filled(asker: Asker, **config: object) -> None:
    await asker.create("D", subjects=["d.>"], **({"allow_direct": True} | config))
    await asker.publish(b"d.a", b"1", b"2")
    await asker.publish(b"d.b", b"3")
    await asker.publish(b"d.a", b"4", headers=BLOCK)
    await asker.publish(b"d.c", b"")


async def _get(asker: Asker, body: bytes, stream: bytes = b"D") -> ReceivedMessage:
    return await asker.ask(GET + stream, body)


async def test_a_reply_is_the_message_with_descriptive_headers(streaming: Streaming) -> None:
    asker = streaming.asker
    streaming.served.broker.world.clock.us = 1_794_771_806_420_099
    await _filled(asker)
    told = await _get(asker, b'{"seq":4}')
    assert told == ReceivedMessage(
        b"_I",
        b"NATS/1.0\r\nX: y\r\nNats-Stream: D\r\nNats-Subject: d.a\r\nNats-Sequence: 4\r\n"
        b"Nats-Time-Stamp: 2026-11-15T19:43:26.420099Z\r\n\r\n",
        b"4",
    )


@pytest.mark.parametrize(
    ("body", "seq"),
    [
        (b'{"seq":1}', b"1"),
        (b'{"seq":5}', b"5"),
        (b'{"seq" : 3 }', b"3"),
        (b'{"last_by_subj":"d.a"}', b"4"),
        (b'{"last_by_subj":"d.*"}', b"5"),
        (b'{"next_by_subj":"d.b"}', b"3"),
        (b'{"seq":2,"next_by_subj":"d.a"}', b"2"),
        (b'{"seq":3,"next_by_subj":"d.a"}', b"4"),
        (b'{"start_time":"1970-01-01T00:00:00Z"}', b"1"),
        (b'{"start_time":"1970-01-01T00:00:00Z","next_by_subj":"d.b"}', b"3"),
        (b'{"seq":1,"max_bytes":1}', b"1"),
    ],
)
@pytest.mark.feature("G02", "G09")
async def test_a_message_is_found_by_sequence_subject_or_time(
    asker: Asker, body: bytes, seq: bytes
) -> None:
    await _filled(asker)
    assert (await _get(asker, body)).field(b"Nats-Sequence") == seq


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"seq":99}', b"404 Message Not Found"),
        (b'{"last_by_subj":"d.z"}', b"404 Message Not Found"),
        (b'{"last_by_subj":"a..b"}', b"404 Message Not Found"),
        (b'{"seq":4,"next_by_subj":"d.b"}', b"404 Message Not Found"),
        (b'{"start_time":"2100-01-01T00:00:00Z"}', b"404 Message Not Found"),
        (b"", b"408 Empty Request"),
        (b'{"seq":0}', b"408 Empty Request"),
        (b"{bad", b"408 Malformed Request"),
        (b'{"seq":1,"last_by_subj":"d.a"}', b"408 Bad Request"),
    ],
)
@pytest.mark.feature("G06")
async def test_missing_messages_and_invalid_requests_receive_a_status(
    asker: Asker, body: bytes, status: bytes
) -> None:
    await _filled(asker)
    assert await _get(asker, body) == (b"_I", b"NATS/1.0 %b\r\n\r\n" % status, b"")


@pytest.mark.feature("G05")
async def test_the_subject_may_stand_behind_the_name(asker: Asker) -> None:
    await _filled(asker)
    for subject, seq in ((b"d.a", b"4"), (b"d.*", b"5"), (b">", b"5")):
        assert (await asker.ask(GET + b"D." + subject)).field(b"Nats-Sequence") == seq
    assert (await asker.ask(GET + b"D.d.zz")).headers == NOT_FOUND
    told = await asker.ask(GET + b"D.d.a", b'{"seq":1}')
    assert told.headers == b"NATS/1.0 408 Bad Request\r\n\r\n"
    assert await asker.ask(GET + b"D.d.a", b'{"no_hdr":true}') == (b"_I", b"", b"4")


async def test_a_get_may_want_no_headers(asker: Asker) -> None:
    await _filled(asker)
    assert await _get(asker, b'{"seq":4,"no_hdr":true}') == (b"_I", b"", b"4")


@pytest.mark.feature("G07")
async def test_without_allow_direct_a_get_receives_no_responders(asker: Asker) -> None:
    await _filled(asker, allow_direct=False)
    for stream in (b"D", b"none", b"D.d.a"):
        told = await _get(asker, b'{"seq":1}', stream)
        assert told.headers == b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % (GET + stream)
    config = {"name": "D", "subjects": ["d.>"], "allow_direct": True}
    await asker.api("STREAM.UPDATE.D", config)
    assert (await _get(asker, b'{"seq":1}')).payload == b"1"
    await asker.api("STREAM.DELETE.D")
    assert (await _get(asker, b'{"seq":1}')).headers.startswith(b"NATS/1.0 503\r\n")


async def test_a_get_that_needs_a_later_api_is_refused(asker: Asker) -> None:
    await _filled(asker)
    block = b"NATS/1.0\r\nNats-Required-Api-Level: %d\r\n\r\n"
    told = await asker.ask(GET + b"D", b'{"seq":1}', block % 99)
    assert told.headers == b"NATS/1.0 412 Required Api Level\r\n\r\n"
    assert (await asker.ask(GET + b"D", b'{"seq":1}', block % 5)).payload == b"1"


async def test_without_a_reply_nothing_is_answered(asker: Asker) -> None:
    await _filled(asker)
    body = b"PUB $JS.API.DIRECT.GET.D 9\r\n" + b'{"seq":1}\r\n'
    assert await asker.talk.answer(body, body) == b""


async def test_a_deleted_message_is_not_found(asker: Asker) -> None:
    await _filled(asker)
    await asker.api("STREAM.MSG.DELETE.D", {"seq": 4})
    assert (await _get(asker, b'{"seq":4}')).headers == NOT_FOUND
    assert (await _get(asker, b'{"last_by_subj":"d.a"}')).payload == b"2"


async def _run(asker: Asker, seqs: list[int]) -> list[tuple[bytes | None, bytes]]:
    """Send many gets at once; returns sequence and payload of the replies."""
    bodies = [b'{"seq":%d}' % seq for seq in seqs]
    line = b"PUB " + GET + b"D _I %d\r\n%b\r\n"
    asker.talk.send(b"".join(line % (len(body), body) for body in bodies))
    told = [await asker.receive() for _ in seqs]
    return [(one.field(b"Nats-Sequence"), one.payload) for one in told]


RUNS = [
    [1, 2, 3, 4, 5],
    [2, 3],
    [5, 4, 3, 2, 1],
    [1, 1, 1],
    [4, 5, 6, 7],
    [99, 1, 100],
    [1, 2, 2, 3, 5],
]
STORED = {1: b"1", 2: b"2", 3: b"3", 4: b"4", 5: b""}


def _expected(seqs: list[int], gone: set[int]) -> list[tuple[bytes | None, bytes]]:
    return [
        (b"%d" % seq, STORED[seq]) if seq in STORED.keys() - gone else (None, b"") for seq in seqs
    ]


@pytest.mark.parametrize("gone", [set(), {3}, {1, 2}, {2, 3, 4}, {5}], ids=str)
@pytest.mark.parametrize("where", ["memory", "files", "bucket"])
@pytest.mark.feature("G02", "G10")
async def test_a_run_of_gets_is_answered_in_order(
    streaming: Streaming, gone: set[int], where: str
) -> None:
    asker = streaming.asker
    await _filled(asker)
    if where == "bucket":
        await streaming.only_in_bucket("D")
    for seq in gone:
        await asker.api("STREAM.MSG.DELETE.D", {"seq": seq})
    if where == "files":
        streaming.not_in_memory("D")
    for seqs in RUNS:
        assert await _run(asker, seqs) == _expected(seqs, gone)


async def test_a_run_of_gets_after_a_purge(asker: Asker) -> None:
    await _filled(asker)
    await asker.api("STREAM.PURGE.D", {"seq": 4})
    assert await _run(asker, [1, 2, 3, 4, 5, 6]) == _expected([1, 2, 3, 4, 5, 6], {1, 2, 3})
    await asker.api("STREAM.PURGE.D")
    assert await _run(asker, [1, 5, 6]) == [(None, b"")] * 3


async def test_a_run_may_have_a_reply_for_each_get(asker: Asker) -> None:
    await _filled(asker)
    asker.talk.send(b"SUB _R.* 2\r\n")
    line = b"PUB $JS.API.DIRECT.GET.D _R.%d 9\r\n" + b'{"seq":%d}\r\n'
    asker.talk.send(b"".join(line % (seq, seq) for seq in (3, 1, 9, 2)))
    told = [await asker.receive() for _ in range(4)]
    assert [(one.subject, one.payload) for one in told] == [
        (b"_R.3", b"3"),
        (b"_R.1", b"1"),
        (b"_R.9", b""),
        (b"_R.2", b"2"),
    ]


async def test_a_run_of_different_gets_is_answered(asker: Asker) -> None:
    await _filled(asker)
    for body in (b'{"seq":1}', b"", b'{"last_by_subj":"d.b"}', b'{"seq":2}'):
        asker.send(GET + b"D", body)
    told = {(await asker.receive()).payload for _ in range(4)}
    assert told == {b"1", b"", b"3", b"2"}


async def test_a_client_without_headers_gets_payloads(streaming: Streaming) -> None:
    await _filled(streaming.asker)
    plain = await streaming.connect(headers=False, no_responders=False)
    assert await _run(plain, [1, 2]) == [(None, b"1"), (None, b"2")]
    assert await _get(plain, b'{"seq":4}') == (b"_I", b"", b"4")


@pytest.mark.feature("G10")
async def test_a_message_that_is_only_in_the_bucket_is_got(streaming: Streaming) -> None:
    await _filled(streaming.asker)
    await streaming.only_in_bucket("D")
    for body, payload in ((b'{"seq":2}', b"2"), (b'{"last_by_subj":"d.a"}', b"4")):
        assert (await _get(streaming.asker, body)).payload == payload


async def test_too_many_gets_at_once_are_refused(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _filled(streaming.asker)
    monkeypatch.setattr(direct_get, "RUNNING_MAX", 0)
    told = await _get(streaming.asker, b'{"next_by_subj":"d.b"}')
    assert told.headers == b"NATS/1.0 429 Too Many Requests\r\n\r\n"


async def test_too_many_runs_at_once_are_refused(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _filled(streaming.asker)
    streaming.not_in_memory("D")
    monkeypatch.setattr(direct_get, "RUNNING_MAX", 0)
    for body in (b'{"seq":1}', b'{"seq":2}'):
        streaming.asker.send(GET + b"D", body)
    for _ in range(2):
        told = await streaming.asker.receive()
        assert told.headers == b"NATS/1.0 429 Too Many Requests\r\n\r\n"


async def test_a_failed_read_does_not_affect_other_gets(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _filled(streaming.asker)
    streaming.not_in_memory("D")
    stream = streaming.stream("D")
    read = stream.read

    async def fail(offset: int, *limits: int) -> object:
        if offset == 2:
            raise PenstockError("no\nluck")
        return await read(offset, *limits)

    monkeypatch.setattr(stream, "read", fail)
    bodies = [b'{"seq":%d}' % seq for seq in (1, 3, 5)]
    line = b"PUB " + GET + b"D _I %d\r\n%b\r\n"
    streaming.asker.talk.send(b"".join(line % (len(body), body) for body in bodies))
    told = [await streaming.asker.receive() for _ in bodies]
    assert [one.payload for one in told] == [b"1", b"", b""]
    assert told[1].headers == b"NATS/1.0 500 no luck\r\n\r\n"
    assert told[2].field(b"Nats-Sequence") == b"5"


async def test_an_error_status_is_one_line(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise PenstockError("no\nluck")

    await _filled(streaming.asker)
    monkeypatch.setattr(streaming.stream("D"), "next", fail)
    told = await _get(streaming.asker, b'{"next_by_subj":"d.b"}')
    assert told.headers == b"NATS/1.0 500 no luck\r\n\r\n"


async def _copied(streaming: Streaming, messages: int) -> None:
    async def copied() -> bool:
        return streaming.stream("M").messages == messages

    await eventually(copied)


async def _mirrored(streaming: Streaming) -> None:
    await _filled(streaming.asker)
    await streaming.asker.create("M", mirror={"name": "D"}, allow_direct=True)
    await _copied(streaming, 5)


@pytest.mark.feature("G08")
async def test_a_mirror_answers_for_its_origin_and_by_its_own_name(streaming: Streaming) -> None:
    await _mirrored(streaming)
    answered: set[bytes | None] = set()
    async with asyncio.timeout(30):
        while answered != {b"D", b"M"}:
            told = await _get(streaming.asker, b'{"seq":1}')
            assert told.payload == b"1"
            answered.add(told.field(b"Nats-Stream"))
    assert (await _get(streaming.asker, b'{"seq":1}', b"M")).field(b"Nats-Stream") == b"M"


@pytest.mark.feature("G08")
async def test_a_mirror_does_not_return_messages_deleted_in_the_origin(
    streaming: Streaming,
) -> None:
    asker = streaming.asker
    await _mirrored(streaming)
    await asker.api("STREAM.MSG.DELETE.D", {"seq": 4})
    for _ in range(20):
        assert (await _get(asker, b'{"seq":4}')).headers == NOT_FOUND
        assert (await _get(asker, b'{"last_by_subj":"d.a"}')).payload == b"2"
    assert (await _get(asker, b'{"seq":4}', b"M")).payload == b"4"


@pytest.mark.feature("G08")
async def test_the_origin_answers_for_messages_that_a_mirror_lacks(streaming: Streaming) -> None:
    await _mirrored(streaming)
    await streaming.asker.api("STREAM.PURGE.M")
    for _ in range(20):
        assert (await _get(streaming.asker, b'{"seq":1}')).payload == b"1"


@pytest.mark.feature("G08")
async def test_a_mirror_answers_after_its_origin_was_deleted(streaming: Streaming) -> None:
    await _mirrored(streaming)
    await streaming.asker.api("STREAM.DELETE.D")
    told = await _get(streaming.asker, b'{"last_by_subj":"d.a"}')
    assert (told.field(b"Nats-Stream"), told.payload) == (b"M", b"4")


@pytest.mark.feature("G08")
async def test_a_filtered_mirror_does_not_answer_for_its_origin(streaming: Streaming) -> None:
    asker = streaming.asker
    await _filled(asker)
    await asker.create("M", mirror={"name": "D", "filter_subject": "d.b"})
    await _copied(streaming, 1)
    for _ in range(20):
        assert (await _get(asker, b'{"last_by_subj":"d.a"}')).payload == b"4"
    await asker.api("STREAM.DELETE.D")
    assert (await _get(asker, b'{"last_by_subj":"d.b"}')).headers.startswith(b"NATS/1.0 503")


@given(st.lists(st.integers(1, 10**18 - 1), min_size=1))
def test_a_run_of_sequences_is_read_at_once(seqs: list[int]) -> None:
    assert sequences_of([b'{"seq":%d}' % seq for seq in seqs]) == seqs


@pytest.mark.parametrize(
    "bodies",
    [
        [b'{"seq":1}', b""],
        [b'{"seq":1}', b'{"seq":0}'],
        [b'{"seq":1}', b'{"seq":}'],
        [b'{"seq":1}', b'{"seq":-1}'],
        [b'{"seq":1}', b'{"seq":1,"batch":2}'],
        [b'{"seq":1}', b'{"seq": 2}'],
        [b'{"seq":1}\n{"seq":2}', b""],
        [b'{"seq":1}\n{"seq":2}', b'{"seq":3}'],
        [b'{"seq":1', b'{"seq":2}'],
        [b'{"seq":1}', b'{"seq":1234567890123456789}'],
        [b'{"last_by_subj":"a"}', b'{"seq":1}'],
    ],
)
def test_anything_else_is_not_a_run_of_sequences(bodies: list[bytes]) -> None:
    assert sequences_of(bodies) is None


async def test_a_requested_wildcard_is_not_a_literal_subject(asker: Asker) -> None:
    await _filled(asker)
    await asker.publish(b"d.*", b"star")
    await asker.publish(b"d.z", b"last")
    for body, payload in (
        (b'{"last_by_subj":"d.*"}', b"last"),
        (b'{"last_by_subj":"d.>"}', b"last"),
        (b'{"next_by_subj":"d.*","seq":6}', b"star"),
    ):
        assert (await _get(asker, body)).payload == payload
    assert (await asker.ask(GET + b"D.d.*", b"")).payload == b"last"
