"""The `penstock` command; the modules of its commands are imported on first use.

An error is one line on standard error and exit code 1; a wrong command line is one line and exit
code 2. Command modules import heavy packages (pyarrow, the servers, rich) inside their functions,
so that the command line starts fast.
"""

import importlib
import sys
from typing import Final

import click

from penstock import __version__
from penstock.model.errors import PenstockError

COMMANDS: Final = {
    "channel": "penstock.cli.channels:channel",
    "config": "penstock.cli.config:config",
    "consumer": "penstock.cli.channels:consumer",
    "dlq": "penstock.cli.jobs:dlq",
    "fetch": "penstock.cli.read:fetch",
    "get": "penstock.cli.read:get",
    "job": "penstock.cli.jobs:job",
    "manifest": "penstock.cli.objects:manifest",
    "namespace": "penstock.cli.admin:namespace",
    "object": "penstock.cli.objects:object_",
    "pipeline": "penstock.cli.pipeline:pipeline",
    "producer": "penstock.cli.channels:producer",
    "push": "penstock.cli.push:push",
    "serve": "penstock.cli.serve:serve",
    "tail": "penstock.cli.read:tail",
    "tenant": "penstock.cli.admin:tenant",
    "topic": "penstock.cli.admin:topic",
    "wal": "penstock.cli.wal:wal",
}
"""Where each command is defined: `module:attribute`."""

EXIT_ERROR: Final = 1
EXIT_INTERRUPTED: Final = 130

__all__ = ["main"]


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="penstock", message="%(prog)s %(version)s")
def cli() -> None:
    """Penstock: a durable, pull-based message broker."""


def main() -> None:
    """Run the command line and exit."""
    try:
        code = cli.main(prog_name="penstock", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_:
        help_.show()
        code = help_.exit_code
    except click.ClickException as error:
        code = _print_error(_usage_error(error), error.exit_code)
    except PenstockError as error:
        code = _print_error(str(error), EXIT_ERROR)
    except click.Abort:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _print_error(message: str, code: int) -> int:
    click.echo(f"error: {message}", err=True)
    return code


def _usage_error(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    return f"{error.format_message().rstrip('.')}{hint}"
