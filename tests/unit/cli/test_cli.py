"""The real program: its help, exit codes and one-line errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import __version__
from penstock.cli import COMMANDS, cli

PENSTOCK = Path(sys.executable).with_name("penstock")


def _run(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([PENSTOCK, *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_version_is_printed() -> None:
    assert _run("--version") == (0, f"penstock {__version__}\n", "")


def test_help_lists_every_command() -> None:
    code, output, _ = _run("--help")
    assert code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in output


def test_a_missing_command_prints_help_and_is_a_usage_error() -> None:
    code, _, errors = _run()
    assert code == 2
    assert errors.startswith("Usage: penstock ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense' (see penstock --help)"),
        (["serve", "--nonsense"], "No such option '--nonsense' (see penstock serve --help)"),
        (
            ["config", "show", "extra"],
            "Got unexpected extra argument (extra) (see penstock config show --help)",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    assert _run(*arguments) == (2, "", f"error: {message}\n")


def test_an_error_is_one_line_and_exit_1() -> None:
    assert _run("config", "show", "--set", "log.level=loud") == (
        1,
        "",
        "error: log.level is 'loud' (--set) but must be one of debug, info, warning, error\n",
    )


def test_a_closed_output_pipe_prints_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as nobody:
        done = subprocess.run(
            [PENSTOCK, "config", "docs"],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["config", "show"]])
def test_help_version_and_config_import_nothing_heavy(arguments: list[str]) -> None:
    probe = (
        "import sys\n"
        "from penstock.cli import cli\n"
        f"cli.main({arguments!r}, standalone_mode=False)\n"
        "heavy = {'pyarrow', 'numpy', 'uvicorn', 'uvloop', 'rich', 'structlog', 'starlette'}\n"
        "sys.exit(repr(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists(name: str) -> None:
    import click

    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help
