import pytest

from penstock.doors.nats import purge as purge_module
from penstock.doors.nats.purge import purge
from penstock.wire.jetstream.requests import PurgeRequest
from tests.unit.doors.nats.streaming import Streaming

SUBJECTS = (b"s.a", b"s.b", b"s.a", b"s.c", b"s.a", b"s.b")


async def _filled(streaming: Streaming) -> None:
    await streaming.asker.create("S", subjects=["s.>"])
    for subject in SUBJECTS:
        await streaming.asker.publish(subject, b"x")


async def _left(streaming: Streaming) -> list[int]:
    stream = streaming.stream("S")
    return [offset + 1 for offset in range(stream.next_offset) if (await stream.get(offset)).count]


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        (PurgeRequest(), []),
        (PurgeRequest(seq=3), [3, 4, 5, 6]),
        (PurgeRequest(seq=1), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest(seq=99), []),
        (PurgeRequest(keep=2), [5, 6]),
        (PurgeRequest(keep=6), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest(keep=99), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest(">", keep=1), [6]),
        (PurgeRequest("s.a"), [2, 4, 6]),
        (PurgeRequest("s.a", seq=5), [2, 4, 5, 6]),
        (PurgeRequest("s.a", keep=1), [2, 4, 5, 6]),
        (PurgeRequest("s.*", keep=1), [6]),
        (PurgeRequest("none"), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest("a..b"), [1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.feature("P02")
async def test_what_a_purge_leaves(
    streaming: Streaming, asked: PurgeRequest, left: list[int]
) -> None:
    await _filled(streaming)
    assert await purge(streaming.stream("S"), asked) == len(SUBJECTS) - len(left)
    assert await _left(streaming) == left


@pytest.mark.parametrize(("keep", "left"), [(1, [6]), (2, [3, 6]), (3, [1, 3, 6])])
async def test_what_is_deleted_already_does_not_count(
    streaming: Streaming, keep: int, left: list[int]
) -> None:
    await _filled(streaming)
    stream = streaming.stream("S")
    await stream.delete([1, 3, 4])
    assert await purge(stream, PurgeRequest(keep=keep)) == 3 - len(left)
    assert await _left(streaming) == left


async def test_many_messages_are_deleted_in_parts(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_module, "DELETED_AT_ONCE", 1)
    await _filled(streaming)
    assert await purge(streaming.stream("S"), PurgeRequest("s.a", seq=5)) == 2
    assert await _left(streaming) == [2, 4, 5, 6]
    assert await purge(streaming.stream("S"), PurgeRequest("s.*", keep=1)) == 3
    assert await _left(streaming) == [6]
