"""A stream refuses appends over every protocol, and a refused append changes nothing."""

import pytest
from msgspec.structs import replace

from penstock.model.run import Origin
from penstock.wire.jetstream.errors import ApiError
from tests.broker.streams import Streaming


async def test_a_message_above_the_size_limit_is_refused(made: Streaming) -> None:
    stream = await made.create("small", subjects=["small"], max_msg_size=4)
    await made.push(stream, b"four")
    with pytest.raises(ApiError) as refused:
        await made.push(stream, b"ok", b"fives")
    assert refused.value.err_code == 10054
    answer = await made.publish("small", b"fives")
    assert answer == {
        "error": {
            "code": 400,
            "err_code": 10054,
            "description": "message size exceeds maximum allowed",
        },
        "stream": "small",
        "seq": 0,
    }
    assert (stream.messages, stream.last_seq) == (1, 1)


async def test_headers_count_towards_the_size_and_have_their_own_limit(made: Streaming) -> None:
    stream = await made.create("small", subjects=["small"], max_msg_size=100_000)
    block = b"NATS/1.0\r\nA: " + b"b" * (64 << 10) + b"\r\n\r\n"
    answer = await made.publish("small", b"x", block)
    assert isinstance(answer, dict)
    assert answer["error"]["err_code"] == 10097
    assert stream.messages == 0


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_msgs": 2}, "maximum messages exceeded"),
        ({"max_bytes": 80}, "maximum bytes exceeded"),
        (
            {"max_msgs_per_subject": 2, "discard_new_per_subject": True},
            "maximum messages per subject exceeded",
        ),
    ],
)
async def test_a_full_stream_refuses_new_messages_if_configured_so(
    made: Streaming, limits: dict[str, int], reason: str
) -> None:
    stream = await made.create("full", subjects=["full"], discard="new", **limits)
    for _ in range(2):
        assert await made.publish("full", b"x") != {}
    with pytest.raises(ApiError, match=reason):
        await made.push(stream, b"x", subject=b"full")
    answer = await made.publish("full", b"x")
    assert isinstance(answer, dict)
    assert answer["error"] == {"code": 503, "err_code": 10077, "description": reason}
    assert (stream.messages, stream.last_seq) == (2, 2)
    await stream.delete([0])
    answer = await made.publish("full", b"x")
    assert answer == {"stream": "full", "seq": 3}


async def test_a_sealed_stream_refuses_every_message(made: Streaming) -> None:
    stream = await made.create("done", subjects=["done"])
    await made.publish("done")
    await made.streams.update(replace(stream.config, sealed=True))
    with pytest.raises(ApiError, match="sealed"):
        await made.push(stream, b"x")
    assert stream.last_seq == 1


async def test_a_counter_stream_accepts_only_sums_over_any_protocol(made: Streaming) -> None:
    stream = await made.create("sums", subjects=["sums"], allow_msg_counter=True)
    assert not stream.admission.plain
    with pytest.raises(ApiError) as refused:
        await made.push(stream, b"x")
    assert refused.value.err_code == 10169
    await made.push(stream, b'{"val":"1"}', origin=Origin.COUNTER)
    with pytest.raises(ApiError):
        await made.push(stream, b"x")
    assert stream.messages == 1
