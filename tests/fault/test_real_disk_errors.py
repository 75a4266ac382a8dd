"""Disks that are full, fail or die, by the kernel's own paths: nothing is mocked here."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fault import failing_disk, full_disk
from tests.fault.isolated import run_isolated
from tests.powercut.broker import Broker
from tests.powercut.history import History
from tests.powercut.orders import Orders, TopicOrders
from tests.powercut.partition import Violation
from tests.powercut.watch import Watch

REACHED_SECONDS = 60


@pytest.mark.feature("T30")
def test_a_full_disk_is_told_to_producers_and_deletions_make_room_again(tmp_path: Path) -> None:
    run_isolated(full_disk.producers_are_told_and_deletions_make_room, tmp_path)


@pytest.mark.feature("T30")
def test_writing_resumes_by_itself_when_somebody_else_makes_room(tmp_path: Path) -> None:
    run_isolated(full_disk.writing_resumes_when_somebody_else_makes_room, tmp_path)


@pytest.mark.feature("T30")
def test_a_broker_killed_on_a_full_disk_has_everything_once_there_is_room(tmp_path: Path) -> None:
    run_isolated(full_disk.a_killed_broker_has_everything_once_there_is_room, tmp_path)


@pytest.mark.feature("T04", "T30")
def test_a_start_on_a_full_disk_with_a_torn_tail_serves_and_resumes(tmp_path: Path) -> None:
    scenario = full_disk.a_start_with_a_torn_tail_serves_reads_and_resumes_when_there_is_room
    run_isolated(scenario, tmp_path)


@pytest.mark.feature("T04", "T30")
def test_a_start_on_a_full_disk_with_a_sealed_file_serves_and_resumes(tmp_path: Path) -> None:
    scenario = full_disk.a_start_with_a_sealed_last_file_serves_reads_and_resumes_when_there_is_room
    run_isolated(scenario, tmp_path)


@pytest.mark.feature("T30")
def test_a_start_is_refused_in_one_line_where_the_metadata_are_on_a_full_disk(
    tmp_path: Path,
) -> None:
    run_isolated(full_disk.metadata_on_a_full_disk_refuse_the_start_in_one_line, tmp_path)


@pytest.mark.feature("T03", "T30")
def test_a_failed_fsync_is_told_to_producers_and_loses_nothing(tmp_path: Path) -> None:
    run_isolated(failing_disk.a_failed_fsync_stops_the_logs_and_loses_nothing, tmp_path)


@pytest.mark.feature("T04")
@pytest.mark.parametrize(
    ("call", "times"),
    [
        ("fdatasync", (1, 4, 20)),
        ("writev", (1, 4, 20)),
        ("fsync", (1, 3, 10)),
        ("/^rename", (1, 3, 10)),
        ("/^unlink", (1, 2)),
    ],
)
def test_a_process_killed_at_a_system_call_loses_nothing(
    call: str, times: tuple[int, ...], tmp_path: Path
) -> None:
    strace = _strace_or_skip()
    history = History()
    violations: list[Violation] = []
    for cycle, nth in enumerate(times):
        inject = f"inject={call}:signal=SIGKILL:when={nth}"
        # Without --seccomp-bpf, which is faster, but some versions of strace inject nothing then.
        prefix = [strace, "-f", "-qq", "-o", "/dev/null"]
        broker = Broker([*prefix, "-e", f"trace={call}", "-e", inject])
        try:
            watch = Watch(broker, history, _busy(tmp_path, cycle), violations)
            watch.listen(REACHED_SECONDS)
            assert broker.silent, f"no thread came to its {nth}th {call}"
        finally:
            broker.close()
    broker = Broker()
    try:
        watch = Watch(broker, history, Orders(str(tmp_path), 0, len(times)), violations)
        watch.await_recovery()
        broker.stop()
        watch.drain()
        assert (watch.recovered, broker.wait()) == (True, 0), broker.words()
    finally:
        broker.close()
    assert history.acks
    assert not violations


def _busy(directory: Path, cycle: int) -> Orders:
    topics = (
        TopicOrders("default/default/plain", partitions=2),
        TopicOrders("default/default/purged", purged=True, settled=False),
    )
    return Orders(
        str(directory), seed=cycle, cycle=cycle, topics=topics, index=False, file_bytes_max=16 << 10
    )


def _strace_or_skip() -> str:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    tried = subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"strace cannot trace here: {' '.join(tried.stderr.split())}")
    return strace
