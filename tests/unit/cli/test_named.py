"""What these commands do to a broker is shown in tests/integration/channels/test_commands.py."""

from __future__ import annotations

from click.testing import CliRunner

from penstock.cli.named import list_command, put_command

UNREACHABLE = "http://127.0.0.1:1"


def test_help_tells_what_is_made() -> None:
    said = CliRunner().invoke(put_command("producer", "Make a producer."), ["--help"]).output
    assert "put [OPTIONS] NAME" in said
    assert "Make a producer." in said
    assert "List producers, newest first." in (
        CliRunner().invoke(list_command("producers"), ["--help"]).output
    )


def test_a_broker_that_is_not_there_is_named() -> None:
    for command, arguments in (
        (put_command("producer", "Make a producer."), ["one"]),
        (list_command("producers"), []),
    ):
        done = CliRunner().invoke(command, [*arguments, "--url", UNREACHABLE])
        assert done.exit_code != 0
        assert UNREACHABLE in f"{done.output}{done.exception}"
