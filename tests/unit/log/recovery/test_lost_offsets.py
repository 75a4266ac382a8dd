import pytest
from pyroaring import BitMap64

from penstock.formats import bodies
from penstock.formats.bodies import DeleteBody, EndsBody, LinkBody, LinkPart, ObjectRef, SealBody
from penstock.formats.frames import Codec, FrameHeader, Kind, encode_frame
from penstock.formats.scan import Damage, Verdict
from penstock.log.recovery.lost_offsets import LostOffsets, end_offsets_from
from penstock.log.state import LogState
from penstock.model.units import PartitionId, PartitionRange


def header(kind: Kind, partition: int = 0, first: int = 0, entries: int = 0) -> FrameHeader:
    return FrameHeader(1, 0, kind, Codec.NATIVE, 0, partition, 7, 7, 0, first, 0, entries)


def damage(
    intact_header: FrameHeader | None = None,
    size_bytes: int = 100,
    number: int = 7,
    position: int = 200,
) -> Damage:
    return Damage(Verdict.UNCERTAIN, position, position + size_bytes, number, intact_header)


def checkpoint(durable: int) -> FrameHeader:
    return header(Kind.CHECKPOINT)._replace(durable=durable)


def state(**nexts: int) -> LogState:
    """Next offsets by partition: `p0=5`."""
    log_state = LogState("t")
    for name, next_ in nexts.items():
        log_state.reach(int(name[1:]), next_)
    return log_state


LINK = LinkBody("app", 1, [LinkPart(2, 10, [ObjectRef("a", 5, 1, 1), ObjectRef("b", 3, 1, 1)])])
HOLE = DeleteBody(0, BitMap64(range(1000)).serialize(), "takeover")


@pytest.mark.parametrize(
    ("intact_header", "revealed"),
    [
        (header(Kind.BATCH, 3, 10, 5), {3: 15}),
        (header(Kind.DELETE, 3, 10), {3: 10}),
        (header(Kind.LINK, entries=5), None),
        (header(Kind.SETTLE, entries=5), {}),
        (header(Kind.CHECKPOINT), {}),
    ],
)
def test_an_intact_header_reveals_the_offsets_of_its_kind(
    intact_header: FrameHeader, revealed: dict[int, int] | None
) -> None:
    assert end_offsets_from(damage(intact_header), b"") == revealed


@pytest.mark.parametrize("app", ["", "a", "abcde", "abcdefghijkl"])
def test_a_link_without_a_header_is_recognised_by_its_body(app: str) -> None:
    body = bodies.encode(LinkBody(app, LINK.epoch, LINK.parts))
    assert end_offsets_from(*_headless(body)) == {2: 18}


@pytest.mark.parametrize(
    ("body", "revealed"),
    [
        (bodies.encode(EndsBody(b"\0\0\0\0", bytes(8))), {}),
        (bodies.encode(SealBody(7, b"table")), {}),
        (bodies.encode(HOLE), None),
        (b"\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0ahi", None),
        (b"", None),
    ],
    ids=["ends", "seal", "delete", "messages", "nothing"],
)
def test_a_body_without_a_header_reveals_offsets(
    body: bytes, revealed: dict[int, int] | None
) -> None:
    assert end_offsets_from(*_headless(body)) == revealed


def _headless(body: bytes) -> tuple[Damage, bytes]:
    """A frame between others whose header is damaged."""
    fields = header(Kind.LINK)._replace(body_bytes=len(body))
    frame = b"".join(encode_frame(fields, [body]))
    data = b"before.." + b"\xff" * 64 + frame[64:] + b"behind.."
    return damage(None, len(frame), position=8), data


def test_an_unreadable_frame_may_have_used_offsets_of_every_partition() -> None:
    log = state(p0=5, p3=0)
    log.floor = 2
    lost = LostOffsets(log)
    lost.note_unknown(damage(), None, acknowledged=False)
    assert lost.settle() == ([], [PartitionRange(0, 5, 805), PartitionRange(3, 0, 800)])
    assert (log.nexts, log.floor) == ({0: 805, 3: 800}, 802)
    assert (log.live_count(PartitionId(0)), log.live_count(PartitionId(3))) == (5, 0)


def test_acknowledged_messages_are_missing_and_not_deleted() -> None:
    log = state(p0=5)
    lost = LostOffsets(log)
    lost.note_unknown(damage(header(Kind.LINK, entries=4)), 1, acknowledged=True)
    assert lost.settle() == ([PartitionRange(0, 5, 9)], [])
    assert (log.nexts, log.live_count(PartitionId(0))) == ({0: 9}, 9)


def test_doubts_add_up() -> None:
    log = state(p0=5)
    lost = LostOffsets(log)
    for number in (7, 9):
        lost.note_unknown(damage(size_bytes=10, number=number), 1, acknowledged=False)
    assert lost.settle() == ([], [PartitionRange(0, 5, 165)])
    assert log.floor == 160


def test_a_later_frame_takes_its_partition_out_of_doubt() -> None:
    lost = LostOffsets(state(p0=5, p1=6))
    lost.note_unknown(damage(), 1, acknowledged=True)
    lost.note_known([0, 9])
    assert lost.settle() == ([PartitionRange(1, 6, 806)], [])


def test_a_checkpoint_after_one_lost_frame_reveals_all_ends() -> None:
    log = state(p0=5, p1=6)
    lost = LostOffsets(log)
    lost.note_unknown(damage(), 1, acknowledged=True)
    lost.checkpoint(checkpoint(durable=8), [0])
    assert lost.settle() == ([], [])
    assert log.floor == 0
    lost.note_unknown(damage(number=20), 1, acknowledged=True)
    lost.checkpoint(checkpoint(durable=21), [])
    assert lost.settle() == ([], [])


@pytest.mark.parametrize("frames", [2, None])
def test_a_checkpoint_after_lost_frames_reveals_the_ends_that_it_names(frames: int | None) -> None:
    """One of the lost frames may have been the checkpoint that named the others."""
    lost = LostOffsets(state(p0=5, p1=6))
    lost.note_unknown(damage(), frames, acknowledged=False)
    lost.checkpoint(checkpoint(durable=9), [0])
    assert lost.settle() == ([], [PartitionRange(1, 6, 806)])


def test_a_checkpoint_of_the_same_group_does_not_know_the_lost_frame() -> None:
    lost = LostOffsets(state(p0=5))
    lost.note_unknown(damage(number=7), 1, acknowledged=False)
    lost.checkpoint(checkpoint(durable=7), [0])
    assert lost.settle() == ([], [PartitionRange(0, 5, 805)])


def test_a_frame_with_a_known_end_counts_as_written() -> None:
    log = state(p0=5)
    lost = LostOffsets(log)
    lost.note_ends({0: 7, 4: 3})
    assert lost.settle() == ([], [PartitionRange(0, 5, 7), PartitionRange(4, 0, 3)])
    assert log.nexts == {0: 7, 4: 3}
