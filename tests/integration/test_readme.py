"""The commands of the README do what it says. Those that would download are planned, not run."""

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.process import FREE_PORT, PENSTOCK, Answer, Broker, clean_environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


def _commands(*start: str) -> list[str]:
    return [command for command in COMMANDS if shlex.split(command)[: len(start)] == [*start]]


def _planned(command: str) -> list[str]:
    """The commands that make would run."""
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_every_command_is_of_a_kind_that_is_tested_here() -> None:
    tested = [*_commands("make"), *_commands("curl"), *_commands("penstock")]
    assert sorted(tested) == sorted(COMMANDS)


@pytest.mark.parametrize("command", _commands("make"))
def test_every_make_command_can_be_planned(command: str) -> None:
    assert _planned(command)


@pytest.mark.feature("X02")
def test_make_run_starts_a_broker_that_answers_the_curl_command(tmp_path: Path) -> None:
    program, *arguments = shlex.split(_planned("make run")[-1])
    assert (ROOT / program).name == "penstock"
    with Broker(*arguments, *FREE_PORT, command=(PENSTOCK,), cwd=tmp_path) as broker:
        (curl,) = _commands("curl")
        path = curl.removeprefix("curl http://127.0.0.1:8080")
        answer = broker.get(path)
        assert (answer.status, answer.body["status"]) == (200, "ready")
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize("command", _commands("penstock", "config"))
def test_every_config_command_runs(command: str, tmp_path: Path) -> None:
    arguments = shlex.split(command)[1:]
    done = subprocess.run(
        [PENSTOCK, *arguments],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "storage.wal.fsync_interval_ms" in done.stdout


@pytest.mark.parametrize("command", _commands("penstock", "serve"))
def test_every_serve_command_runs(command: str, tmp_path: Path) -> None:
    arguments = shlex.split(command)[1:]
    with Broker(*arguments, *FREE_PORT, command=(PENSTOCK,), cwd=tmp_path) as broker:
        assert broker.get("/healthz") == Answer(200, {"status": "ok"})
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target
