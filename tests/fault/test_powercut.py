"""Real power cuts lose nothing that was promised; and disks that do not sync are found out."""

import re
import subprocess
import sys

import pytest

from tests.fault.isolated import ROOT, skip_unless_mounting_works

MINUTES = 60


def _cut(*options: str) -> subprocess.CompletedProcess[str]:
    skip_unless_mounting_works()
    command = [sys.executable, "-m", "tests.powercut", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.feature("T03", "T04")
@pytest.mark.timeout(10 * MINUTES)
def test_fifty_power_cuts_lose_nothing_that_was_acknowledged() -> None:
    done = _cut("--cuts", "50")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^50 power cuts .* 0 violations$", done.stdout, re.MULTILINE)


@pytest.mark.timeout(5 * MINUTES)
def test_power_cuts_find_out_a_disk_that_does_not_sync_files() -> None:
    done = _cut("--cuts", "15", "--disk", "unsynced")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^(lost|topic): ", done.stdout, re.MULTILINE)


@pytest.mark.timeout(5 * MINUTES)
def test_power_cuts_find_out_a_disk_that_does_not_sync_names() -> None:
    done = _cut("--cuts", "30", "--disk", "unsynced_directory", "--only-new-topics")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^(lost|topic): ", done.stdout, re.MULTILINE)
