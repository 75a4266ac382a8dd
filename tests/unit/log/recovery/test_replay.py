"""Replay of a file in parts; test_recover.py tests whole files."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog.testing

from penstock.formats.scan import IntactFrame
from penstock.log.files.scans import Scanned, scan_file
from penstock.log.recovery.replay import FrameReplay, items_of
from penstock.log.state import LogState, Missing
from penstock.model.units import Offset, PartitionId, PartitionRange
from tests.unit.log import segments
from tests.unit.log.disks import Unsynced
from tests.unit.log.segments import Segment


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return segments.make(tmp_path_factory.mktemp("killed"), segments.mixed)


def scanned(directory: Path, segment: Segment, *damaged: int) -> Scanned:
    """The file with these bytes changed."""
    data = bytearray(segment.data)
    for position in damaged:
        data[position] ^= 1
    path = directory / segment.name
    path.write_bytes(data)
    return scan_file(Unsynced(), path, None, 0)


def facts(replay: FrameReplay) -> tuple[object, ...]:
    state = replay.state
    return state.nexts, state.deleted(), state.floor, replay.missing, replay.gaps


def test_frames_and_damage_are_in_the_order_of_the_file(tmp_path: Path, killed: Segment) -> None:
    hit = killed.frames[3].position
    items = items_of(scanned(tmp_path, killed, hit))
    assert [item.position for item in items] == [frame.position for frame in killed.frames]
    assert [item.position for item in items if not isinstance(item, IntactFrame)] == [hit]


@pytest.mark.feature("T04")
@pytest.mark.parametrize("hit", [[], [1], [3], [6], [8], [1, 6]])
def test_replaying_a_file_in_two_parts_gives_the_same_state(
    tmp_path: Path, killed: Segment, hit: list[int]
) -> None:
    file = scanned(tmp_path, killed, *(killed.frames[n].position + 4 for n in hit))
    whole = FrameReplay(LogState("t"))
    whole.frames(file)
    whole.settle()
    for stop in range(len(items_of(file)) + 1):
        parts = FrameReplay(LogState("t"))
        parts.frames(file, 0, stop)
        parts.frames(file, stop)
        parts.settle()
        assert facts(parts) == facts(whole)


def test_uncertain_offsets_make_a_replay_begin_again(tmp_path: Path, killed: Segment) -> None:
    sound, doubtful = FrameReplay(LogState("t")), FrameReplay(LogState("t"))
    sound.frames(scanned(tmp_path, killed))
    doubtful.frames(scanned(tmp_path, killed, killed.frames[-1].position + 4))
    assert (sound.settle(), doubtful.settle()) == (False, True)
    assert doubtful.gaps


def test_missing_offsets_are_reported_once_unless_they_were_deleted() -> None:
    replay = FrameReplay(LogState("t"))
    replay.state.skip(0, 3)
    replay.state.reach(0, 9)
    with structlog.testing.capture_logs() as events:
        replay.note_missing(PartitionRange(0, 0, 3))
        replay.note_missing(PartitionRange(0, 2, 5))
        replay.note_missing(PartitionRange(0, 5, 5))
    assert replay.missing == [Missing(PartitionId(0), Offset(2), Offset(5))]
    assert [(event["event"], event["first"], event["next"]) for event in events] == [
        ("offsets_missing", 2, 5)
    ]
