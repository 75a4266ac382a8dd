import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.assembly.directory import LOCK_FILE, locked
from penstock.model.errors import StartRefused

HOLD = """
import sys, time
from penstock.assembly.directory import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_directory_is_created_and_the_lock_file_names_this_process(tmp_path: Path) -> None:
    data = tmp_path / "a" / "b"
    with locked(str(data)):
        assert (data / LOCK_FILE).read_text() == f"{os.getpid():<20}\n"


def test_a_second_holder_is_refused_by_name_and_the_first_keeps_it(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(str(tmp_path)), pytest.raises(StartRefused) as caught, locked(str(tmp_path)):
            pass
        assert str(caught.value) == (
            f"data directory {tmp_path} is in use by process {os.getpid()}; "
            "stop it or choose another with --data"
        )


def test_an_unlocked_directory_can_be_locked_again(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(str(tmp_path)):
            pass


def test_an_error_within_the_block_unlocks_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(str(tmp_path)):
        raise ZeroDivisionError
    with locked(str(tmp_path)):
        pass


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(StartRefused, match=f"in use by process {holder.pid};"),
            locked(str(tmp_path)),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locked(str(tmp_path)):
        assert (tmp_path / LOCK_FILE).read_text().strip() == str(os.getpid())


def test_a_path_that_cannot_be_a_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StartRefused) as caught, locked(str(file / "data")):
        pass
    assert str(caught.value) == (
        f"cannot use data directory {file}/data (not a directory); choose another with --data"
    )


def test_a_lock_file_that_is_a_link_is_refused_and_its_target_is_not_written(
    tmp_path: Path,
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    data = tmp_path / "data"
    data.mkdir()
    (data / LOCK_FILE).symlink_to(target)
    with pytest.raises(StartRefused, match="symbolic links"), locked(str(data)):
        pass
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_file_that_is_no_plain_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / LOCK_FILE)
    with pytest.raises(StartRefused), locked(str(tmp_path)):
        pass
