from collections.abc import Sequence
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import scan as scan_module
from penstock.formats.frames import Codec, FrameHeader, Kind, encode_frame
from penstock.formats.scan import BadBytes, Damage, IntactFrame, Verdict, judge, scan, walk

MARK = 0x5EED1234


class Frame(NamedTuple):
    """A frame at its position."""

    position: int
    header: FrameHeader
    data: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)

    @property
    def found(self) -> IntactFrame:
        return IntactFrame(self.position, self.header)


def frame(number: int, durable: int, body: bytes, mark: int = MARK) -> bytes:
    fields = FrameHeader(
        mark, len(body), Kind.BATCH, Codec.PACKED, 0, 0, number, durable, 0, number, 0, 1
    )
    return b"".join(encode_frame(fields, [body]))


def in_place(groups: Sequence[Sequence[bytes]], position: int = 64) -> list[Frame]:
    """Frames of consecutive synced groups, from frame 0 on."""
    frames: list[Frame] = []
    for group in groups:
        durable = len(frames)
        for body in group:
            data = frame(len(frames), durable, body)
            header = FrameHeader(
                MARK, len(body), 1, 1, 0, 0, len(frames), durable, 0, len(frames), 0, 1
            )
            frames.append(Frame(position, header, data))
            position += len(data)
    return frames


def file_of(frames: Sequence[Frame]) -> bytes:
    return bytes(64) + b"".join(frame.data for frame in frames)


GROUPS = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=3), min_size=1, max_size=4)


@given(GROUPS)
def test_an_undamaged_file_is_all_its_frames_and_nothing_else(groups: list[list[bytes]]) -> None:
    frames = in_place(groups)
    data = file_of(frames)
    for view in (data, bytearray(data), memoryview(data)):
        assert list(scan(view, MARK, 64)) == [frame.found for frame in frames]
    assert judge(scan(data, MARK, 64), 0, 0) == ([frame.found for frame in frames], [])


@given(GROUPS, st.integers(1, 3), st.data())
def test_walk_returns_the_frames_of_scan_together(
    groups: list[list[bytes]], together: int, data: st.DataObject
) -> None:
    whole = bytearray(file_of(in_place(groups)))
    for place in data.draw(st.lists(st.integers(64, len(whole) - 1), max_size=2)):
        whole[place] ^= 1
    with mock.patch.object(scan_module, "RUN_FRAMES_MAX", together):
        walked = list(walk(bytes(whole), MARK, 64))
        scanned = list(scan(bytes(whole), MARK, 64))
    runs = [item for item in walked if not isinstance(item, BadBytes)]
    assert all(1 <= len(run) <= together for run in runs)
    flat: list[int | BadBytes] = []
    for item in walked:
        flat += [item] if isinstance(item, BadBytes) else item
    assert flat == [item if isinstance(item, BadBytes) else item.position for item in scanned]
    assert scanned == list(scan(bytes(whole), MARK, 64))


@pytest.mark.feature("T05")
@given(GROUPS)
def test_a_file_cut_at_any_byte_has_its_whole_frames_and_a_torn_end(
    groups: list[list[bytes]],
) -> None:
    frames = in_place(groups)
    data = file_of(frames)
    for size in range(64, len(data) + 1):
        whole = [frame for frame in frames if frame.end <= size]
        cut = next((frame for frame in frames if frame.position < size < frame.end), None)
        found, damages = judge(scan(data[:size], MARK, 64), 0, 0)
        assert found == [frame.found for frame in whole]
        if cut is None:
            assert damages == []
        else:
            header = cut.header if size - cut.position >= 64 else None
            expected = Damage(Verdict.TORN, cut.position, size, cut.header.number, header)
            assert damages == [expected]


@given(GROUPS, st.data())
def test_undamaged_frames_are_found_and_all_other_bytes_are_reported(
    groups: list[list[bytes]], data: st.DataObject
) -> None:
    frames = in_place(groups)
    whole = bytearray(file_of(frames))
    start = data.draw(st.integers(64, len(whole) - 1))
    noise = data.draw(st.one_of(st.binary(min_size=1, max_size=90), st.just(bytes(80))))
    stop = min(start + len(noise), len(whole))
    before = bytes(whole)
    whole[start:stop] = noise[: stop - start]
    items = list(scan(bytes(whole), MARK, 64))
    assert [i for i in items if isinstance(i, IntactFrame)] == [
        f.found for f in frames if before[f.position : f.end] == whole[f.position : f.end]
    ]
    edges = [(item.position, item.end) for item in items]
    assert [start for start, _ in edges] == [64, *(end for _, end in edges[:-1])]
    assert edges[-1][1] == len(whole)


@pytest.mark.feature("T05")
def test_every_flipped_bit_is_corrupt_below_a_marker_and_uncertain_behind_it() -> None:
    frames = in_place([[b"first"], [b"second", b"third" * 5], [b"", b"last group, second frame"]])
    data = file_of(frames)
    for bit in range(64 * 8, len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        hit = next(frame for frame in frames if frame.position <= bit // 8 < frame.end)
        found, damages = judge(scan(bytes(flipped), MARK, 64), 0, 0)
        assert found == [frame.found for frame in frames if frame is not hit]
        header = None if bit // 8 < hit.position + 64 else hit.header
        verdict = Verdict.CORRUPT if hit.header.number < 3 else Verdict.UNCERTAIN
        number = hit.header.number
        assert damages == [Damage(verdict, hit.position, hit.end, number, header)]


def test_damage_below_the_known_durable_frame_is_corrupt() -> None:
    frames = in_place([[b"one"], [b"two"]])
    cut = file_of(frames)[:-1]
    assert judge(scan(cut, MARK, 64), 0, 1)[1][0].verdict is Verdict.TORN
    assert judge(scan(cut, MARK, 64), 0, 2)[1][0].verdict is Verdict.CORRUPT


def test_the_header_of_a_damaged_frame_still_counts_for_durability() -> None:
    frames = in_place([[b"one"], [b"two"]])
    data = bytearray(file_of(frames))
    data[frames[0].position] ^= 1
    data[frames[1].end - 1] ^= 1
    assert judge(scan(bytes(data), MARK, 64), 0, 0) == (
        [],
        [
            Damage(Verdict.CORRUPT, frames[0].position, frames[0].end, 0, None),
            Damage(Verdict.UNCERTAIN, frames[1].position, frames[1].end, 1, frames[1].header),
        ],
    )


@pytest.mark.parametrize("size", [1, 7, 8, 63, 64, 72, 4096])
def test_zeros_at_the_end_are_a_torn_write(size: int) -> None:
    frames = in_place([[b"one"], [b"two"]])
    data = file_of(frames)
    assert list(scan(data + bytes(size), MARK, 64))[2:] == [
        BadBytes(len(data), len(data) + size, None, incomplete=True)
    ]
    _, damages = judge(scan(data + bytes(size), MARK, 64), 0, 0)
    assert damages == [Damage(Verdict.TORN, len(data), len(data) + size, 2, None)]


@pytest.mark.feature("T05")
@pytest.mark.parametrize("before", [0, 120, 312, 400, 440])
@pytest.mark.parametrize("lost", ["first", "second"])
def test_a_header_of_which_a_sector_was_never_written_is_torn(before: int, lost: str) -> None:
    """A power cut leaves this before all sectors of a group are written."""
    frames = in_place([[bytes(before)], [b"x" * 2000]])
    data = bytearray(file_of(frames))
    position = frames[1].position
    border = position // 512 * 512 + 512
    if lost == "first":
        data[position:border] = bytes(border - position)
    else:
        data[border : border + 512] = bytes(512)
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[0].found]
    within = lost == "first" or border < position + 64
    verdict = Verdict.TORN if within else Verdict.UNCERTAIN
    assert [(d.verdict, d.position, d.end) for d in damages] == [(verdict, position, len(data))]


def test_zeros_before_an_intact_frame_are_not_torn() -> None:
    frames = in_place([[b"one", b"two", b"three"]])
    data = bytearray(file_of(frames))
    data[frames[1].position : frames[1].end] = bytes(len(frames[1].data))
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[0].found, frames[2].found]
    hit = frames[1]
    assert damages == [Damage(Verdict.UNCERTAIN, hit.position, hit.end, 1, None)]


@pytest.mark.feature("T05")
@pytest.mark.parametrize("before", [120, 400, 440])
def test_a_group_whose_first_page_was_never_written_is_torn_with_all_that_follows(
    before: int,
) -> None:
    """The disk may write the pages of a group in any order."""
    frames = in_place([[bytes(before)], [b"x" * 6000, b"y", b"z" * 700]])
    data = bytearray(file_of(frames))
    position = frames[1].position
    border = position // 512 * 512 + 512
    data[position:border] = bytes(border - position)
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[0].found]
    assert [(d.verdict, d.position, d.end) for d in damages] == [
        (Verdict.TORN, position, len(data))
    ]


@pytest.mark.feature("T05")
def test_damage_in_a_group_that_was_never_written_to_its_end_is_torn() -> None:
    frames = in_place([[b"one"], [b"two", b"x" * 100, b"three", b"four"]])
    data = bytearray(file_of(frames))[:-10]
    data[frames[2].end - 30] ^= 1
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frame.found for frame in frames[:2]]
    hit = frames[2]
    assert damages == [Damage(Verdict.TORN, hit.position, len(data), 2, hit.header)]


@pytest.mark.feature("T05")
def test_a_group_that_later_frames_call_durable_is_never_torn() -> None:
    frames = in_place([[b"one"], [b"x" * 6000, b"y"], [b"z" * 700]])
    data = bytearray(file_of(frames))[:-10]
    position = frames[1].position
    border = position // 512 * 512 + 512
    data[position:border] = bytes(border - position)
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[0].found, frames[2].found]
    assert [(d.verdict, d.position) for d in damages] == [
        (Verdict.CORRUPT, position),
        (Verdict.TORN, frames[3].position),
    ]


def test_a_wrong_length_cannot_hide_later_frames() -> None:
    frames = in_place([[b"one"], [b"two"], [b"three"]])
    data = bytearray(file_of(frames))
    data[frames[0].position + 4 : frames[0].position + 8] = b"\xff\xff\xff\x00"
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[1].found, frames[2].found]
    assert damages == [Damage(Verdict.CORRUPT, 64, frames[0].end, 0, None)]


def test_a_frame_of_another_file_inside_a_damaged_frame_is_ignored() -> None:
    inner = frame(9, 9, b"from elsewhere", mark=MARK + 1)
    frames = in_place([[inner], [b"two"]])
    data = bytearray(file_of(frames))
    data[frames[0].position + 60] ^= 1
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[1].found]
    assert damages == [Damage(Verdict.CORRUPT, 64, frames[0].end, 0, None)]


def test_the_mark_alone_inside_a_damaged_frame_does_not_stop_the_search() -> None:
    body = MARK.to_bytes(4, "little") * 40
    frames = in_place([[body], [b"two"]])
    data = bytearray(file_of(frames))
    data[frames[0].position + 60] ^= 1
    found, _ = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[1].found]


def test_damage_of_several_frames_is_one_range_from_the_first() -> None:
    frames = in_place([[b"one"], [b"two"], [b"three"], [b"four"]])
    data = bytearray(file_of(frames))
    data[frames[1].position : frames[2].end] = bytes(frames[2].end - frames[1].position)
    found, damages = judge(scan(bytes(data), MARK, 64), 0, 0)
    assert found == [frames[0].found, frames[3].found]
    hit = Damage(Verdict.CORRUPT, frames[1].position, frames[2].end, 1, None)
    assert damages == [hit]
