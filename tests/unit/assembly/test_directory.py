import os
import signal
import subprocess
import sys
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


def test_the_directory_is_made_and_the_lock_names_this_process(tmp_path: Path) -> None:
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


def test_a_directory_let_go_can_be_held_again(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(str(tmp_path)):
            pass


def test_an_error_inside_lets_the_directory_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(str(tmp_path)):
        raise ZeroDivisionError
    with locked(str(tmp_path)):
        pass


def test_a_killed_holder_leaves_nothing_in_the_way(tmp_path: Path) -> None:
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
