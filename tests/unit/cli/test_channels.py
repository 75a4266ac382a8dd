"""Commands of the channel API; tests/integration/channels/test_commands.py runs them."""

from __future__ import annotations

from click.testing import CliRunner

from penstock.cli.channels import form_fields, list_command, put_command

UNREACHABLE = "http://127.0.0.1:1"


def test_help_describes_the_command() -> None:
    text = CliRunner().invoke(put_command("producer", "Make a producer."), ["--help"]).output
    assert "put [OPTIONS] NAME" in text
    assert "Make a producer." in text
    assert "List producers, newest first." in (
        CliRunner().invoke(list_command("producers"), ["--help"]).output
    )


def test_the_error_names_the_unreachable_broker() -> None:
    for command, arguments in (
        (put_command("producer", "Make a producer."), ["one"]),
        (list_command("producers"), []),
    ):
        done = CliRunner().invoke(command, [*arguments, "--url", UNREACHABLE])
        assert done.exit_code != 0
        assert UNREACHABLE in f"{done.output}{done.exception}"


def test_only_fields_with_a_value_are_sent() -> None:
    assert form_fields(a="1", b=None) == {"a": "1"}
