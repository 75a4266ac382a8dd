"""Real power cuts lose nothing that was promised; and whoever breaks a promise is found out."""

import re
import subprocess
import sys

import pytest

from tests.fault.isolated import ROOT, skip_unless_mounting_works

MINUTES = 60
RUNS_MAX = 8
TIERED_CUTS = 12


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


@pytest.mark.feature("T03", "T04", "T07", "T20")
@pytest.mark.timeout(10 * MINUTES)
def test_power_cuts_while_uploading_merging_and_pruning_lose_nothing() -> None:
    done = _cut("--tiers", "--cuts", str(TIERED_CUTS))
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert summary.startswith(f"{TIERED_CUTS} power cuts "), summary
    assert summary.endswith(" 0 violations")
    tiers = (
        r"uploads and [1-9]\d* cut short, [1-9]\d* merged objects, [1-9][\d,]* records that only"
    )
    assert re.search(tiers, summary), summary


@pytest.mark.timeout(10 * MINUTES)
@pytest.mark.parametrize(
    ("bug", "kinds"),
    [
        ("unsynced_objects", "object|lost"),
        ("early_manifest", "object|lost"),
        ("early_prune", "lost|hole"),
        ("early_ack", "cloud"),
    ],
)
def test_power_cuts_find_a_bug_in_the_tiers(bug: str, kinds: str) -> None:
    assert _found_within_runs(kinds, "--cuts", "15", "--bug", bug)


@pytest.mark.timeout(5 * MINUTES)
def test_power_cuts_find_the_acks_of_a_disk_that_does_not_sync_files_to_be_lost() -> None:
    assert _found_within_runs("lost", "--cuts", "15", "--disk", "unsynced")


@pytest.mark.timeout(5 * MINUTES)
def test_power_cuts_find_the_topics_of_a_disk_that_does_not_sync_names_to_be_lost() -> None:
    options = ("--cuts", "15", "--disk", "unsynced_directory", "--only-new-topics")
    assert _found_within_runs("topic", *options)


def _found_within_runs(kind: str, *options: str) -> bool:
    """A run ends with the first cycle that breaks a promise, which may be one of another kind."""
    for _ in range(RUNS_MAX):
        done = _cut(*options)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        if re.search(rf"^({kind}): ", done.stdout, re.MULTILINE):
            return True
    return False
