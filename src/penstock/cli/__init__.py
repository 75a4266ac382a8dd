"""The `penstock` command: commands by noun, each in a module that is imported when it is used.

Rules: an error is one line on standard error and exit code 1, a wrong command line is one line and
2. A command module imports what is heavy (Arrow, the server, rich) inside its functions, so that
the command line answers at once.
"""

import importlib
import sys
from typing import Final

import click

from penstock import __version__
from penstock.model.errors import PenstockError

COMMANDS: Final = {
    "channel": "penstock.cli.channel:channel",
    "config": "penstock.cli.config:config",
    "consumer": "penstock.cli.consumer:consumer",
    "dlq": "penstock.cli.dlq:dlq",
    "fetch": "penstock.cli.fetch:fetch",
    "get": "penstock.cli.get:get",
    "job": "penstock.cli.job:job",
    "manifest": "penstock.cli.manifest:manifest",
    "namespace": "penstock.cli.namespace:namespace",
    "object": "penstock.cli.object:object_",
    "pipeline": "penstock.cli.pipeline:pipeline",
    "producer": "penstock.cli.producer:producer",
    "push": "penstock.cli.push:push",
    "serve": "penstock.cli.serve:serve",
    "tail": "penstock.cli.tail:tail",
    "tenant": "penstock.cli.tenant:tenant",
    "topic": "penstock.cli.topic:topic",
    "wal": "penstock.cli.wal:wal",
}
"""Where each command is: `module:attribute`."""

EXIT_ERROR: Final = 1
EXIT_INTERRUPTED: Final = 130


class LazyGroup(click.Group):
    """A group whose commands are imported by name, when asked for."""

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
    """Penstock: a durable message broker that is pulled."""


def main() -> None:
    """Run the command line and exit."""
    try:
        code = cli.main(prog_name="penstock", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_:
        help_.show()
        code = help_.exit_code
    except click.ClickException as error:
        code = _complain(_usage(error), error.exit_code)
    except PenstockError as error:
        code = _complain(str(error), EXIT_ERROR)
    except click.Abort:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _complain(message: str, code: int) -> int:
    click.echo(f"error: {message}", err=True)
    return code


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    return f"{error.format_message().rstrip('.')}{hint}"
