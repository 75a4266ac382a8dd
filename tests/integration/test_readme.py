"""The commands and programs of the README print what it shows.

Commands of make, which would download, are planned and not run.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.integration.process import FREE_PORT, PENSTOCK, Answer, Broker, clean_environment

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")

HTTP: Final = "http://127.0.0.1:8080"
NATS: Final = "nats://127.0.0.1:4222"
GRPC: Final = "127.0.0.1:7777"


class Example(NamedTuple):
    """A block of the README, and the output that is shown below it, empty if none is."""

    language: str
    text: str
    output: str

    @property
    def commands(self) -> list[str]:
        return self.text.replace("\\\n", "").splitlines()


EXAMPLES: Final = [
    Example(*blocks)
    for blocks in re.findall(
        r"^```(sh|python)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", README, re.MULTILINE | re.DOTALL
    )
]
COMMANDS: Final = [
    command for example in EXAMPLES if example.language == "sh" for command in example.commands
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
    tested = [
        *_commands("make"),
        *_commands("source", ".venv/bin/activate"),
        *_commands("curl"),
        *_commands("penstock"),
    ]
    assert sorted(tested) == sorted(COMMANDS)


@pytest.mark.parametrize("command", _commands("make"))
def test_every_make_command_can_be_planned(command: str) -> None:
    assert _planned(command)


@pytest.mark.feature("X02")
def test_make_run_starts_a_broker_that_prints_what_the_readme_shows(tmp_path: Path) -> None:
    program, *arguments = shlex.split(_planned("make run")[-1])
    assert (ROOT / program).name == "penstock"
    first, *others = EXAMPLES
    with Broker(*arguments, *FREE_PORT, command=(PENSTOCK,), cwd=tmp_path) as broker:
        (nats_url,), (http_url,) = broker.nats_urls, broker.http_urls
        addresses = {NATS: nats_url, HTTP: http_url, GRPC: broker.grpc}
        started = f"nats listening on {NATS}\nhttp listening on {HTTP}\ngrpc listening on {GRPC}\n"
        assert first.output == started
        shown = [example for example in others if example.output and not _needs_spark(example)]
        assert [_output(example, addresses, tmp_path) for example in shown] == [
            example.output for example in shown
        ]
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    assert (tmp_path / "data").is_dir()


def test_the_readme_shows_the_output_of_commands_and_programs() -> None:
    assert [example.language for example in EXAMPLES if example.output] == [
        *("sh", "sh", "sh"),
        *("python", "python"),
    ]


def _needs_spark(example: Example) -> bool:
    """tests/spark/test_readme_table.py runs it."""
    return "penstock.spark" in example.text


def _output(example: Example, addresses: Mapping[str, str], directory: Path) -> str:
    """What an example prints when it runs with a broker at other addresses."""
    text = example.text
    for address, other in addresses.items():
        text = text.replace(address, other)
    if example.language == "python":
        return _printed([sys.executable, "-c", text], directory, {})
    commands = example._replace(text=text).commands
    environment = {"PENSTOCK_URL": addresses[HTTP]}
    return "".join(
        _printed(shlex.split(command), directory, environment).rstrip("\n") + "\n"
        for command in commands
        if not command.startswith("source ")
    )


def _printed(arguments: list[str], directory: Path, environment: Mapping[str, str]) -> str:
    """The standard output of a program of this environment that succeeds."""
    own_programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        arguments,
        cwd=directory,
        env=clean_environment({"PATH": own_programs, **environment}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


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
