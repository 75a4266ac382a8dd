"""The commands of the README do what it says. Those that would download are planned, not run."""

import json
import re
import shlex
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration.process import FREE_PORT, PENSTOCK, Answer, Broker, clean_environment

TOUR = ("topic", "push", "fetch")
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
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
def test_make_run_starts_a_broker_that_takes_the_tour(tmp_path: Path) -> None:
    program, *arguments = shlex.split(_planned("make run")[-1])
    assert (ROOT / program).name == "penstock"
    with Broker(*arguments, *FREE_PORT, command=(PENSTOCK,), cwd=tmp_path) as broker:
        url = f"http://127.0.0.1:{broker.port}"
        said = [_said(command, url) for noun in TOUR for command in _commands("penstock", noun)]
        assert said[:2] == [
            "created tenants/default/namespaces/default/topics/orders\n",
            "SUCCESS 0 - 0\n",
        ]
        assert "| 1  | ada      |" in said[2]
        (fetched,) = (_posted(command, url) for command in _commands("curl"))
        (topic,) = fetched["topics"]
        assert topic["messages"] == [{"id": 1, "customer": "ada"}]
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    assert (tmp_path / "data").is_dir()


def _said(command: str, url: str) -> str:
    done = subprocess.run(
        [PENSTOCK, *shlex.split(command)[1:]],
        env=clean_environment({"PENSTOCK_URL": url}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _posted(command: str, url: str) -> Any:
    """What `curl URL -H HEADER -d BODY` gets, from the broker at `url`."""
    _, address, *options = shlex.split(command)
    given = dict(zip(options[::2], options[1::2], strict=True))
    headers = dict([given["-H"].split(": ")])
    address = address.replace("http://127.0.0.1:8080", url)
    request = urllib.request.Request(address, given["-d"].encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


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
