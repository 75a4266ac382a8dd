"""The replies that publishers of a stream receive."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors import FormatError, RunInvalid
from penstock.streams.answers import Answers, api_error, quoted
from penstock.wire.jetstream import errors
from tests.broker.streams import Streaming


async def answers_of(
    made: Streaming, **config: object
) -> tuple[Answers, list[tuple[bytes, bytes]]]:
    told: list[tuple[bytes, bytes]] = []

    def take(replies: Sequence[bytes], texts: Sequence[bytes], confirms: bool) -> None:
        assert confirms == (b'"error"' not in b"".join(texts))
        told.extend(zip(replies, texts, strict=True))

    return Answers(await made.create("s", **config), take), told


async def test_each_publisher_gets_its_own_reply_and_none_without_a_reply_subject(
    made: Streaming,
) -> None:
    answers, told = await answers_of(made)
    answers.send([b"a", b"", b"c"], [b"1", b"2", b"3"])
    answers.send([b""], [b"4"])
    assert told == [(b"a", b"1"), (b"c", b"3")]


async def test_texts(made: Streaming) -> None:
    answers, told = await answers_of(made)
    answers.duplicate(b"r", 7)
    answers.batch(b"r", 9, b'b"\xff', 2)
    answers.refuse([b"r", b"q"], errors.BATCH_INCOMPLETE.error())
    refusal = (
        b'{"error":{"code":400,"err_code":10176,"description":"atomic publish batch is incomplete"}'
        b',"stream":"s","seq":0}'
    )
    assert told == [
        (b"r", b'{"stream":"s","seq":7,"duplicate": true}'),
        (b"r", '{"stream":"s","seq":9,"batch":"b\\"\ufffd","count":2}'.encode()),
        (b"r", refusal),
        (b"q", refusal),
    ]


async def test_a_stream_without_acks_sends_no_replies(made: Streaming) -> None:
    answers, told = await answers_of(made, no_ack=True)
    answers.send([b"a"], [b"1"])
    answers.duplicate(b"r", 1)
    answers.refuse([b"r"], errors.BATCH_INCOMPLETE.error())
    assert told == []


def test_unknown_errors_become_store_failures() -> None:
    known = errors.BATCH_INCOMPLETE.error()
    assert api_error(known) is known
    other = api_error(FormatError("why"))
    assert (other.err_code, other.description) == (10077, "why")
    invalid = api_error(RunInvalid("too many headers"))
    assert (invalid.status, invalid.err_code, invalid.description) == (
        400,
        10003,
        "too many headers",
    )
    assert quoted(b'a"b') == b'"a\\"b"'
