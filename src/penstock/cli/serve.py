"""`penstock serve`: run the broker in the foreground."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.cli import options
from penstock.config import FlagSetting, load

_F = TypeVar("_F", bound=Callable[..., Any])
KEYS: Final = {"nats": "nats.listen", "http": "http.listen", "grpc": "grpc.listen"}
"""Settings of flags with another name."""


def _listener(flag: str, text: str) -> Callable[[_F], _F]:
    def joined(context: object, option: object, addresses: tuple[str, ...]) -> str | None:
        return ",".join(addresses) if addresses else None

    return click.option(flag, metavar="HOST:PORT", multiple=True, callback=joined, help=text)


@click.command()
@options.config_file
@click.option("--data", metavar="DIR", help="Data directory.  [default: ./data]")
@_listener("--nats", "NATS address.  [default: 127.0.0.1:4222]")
@_listener("--http", "HTTP address.  [default: 127.0.0.1:8080]")
@_listener("--grpc", "gRPC address.  [default: 127.0.0.1:7777]")
@click.option(
    "--role",
    metavar="all|fetch",
    help="A broker, or a node that only serves fetches and stores nothing.  [default: all]",
)
@click.option(
    "--metadata",
    metavar="HOST:PORT",
    help="With --role fetch: gRPC address of the broker.  [default: 127.0.0.1:7777]",
)
@options.overrides
def serve(config_file: Path | None, overrides: tuple[str, ...], **flag_values: str | None) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Prints a line for each address that it listens on. --nats, --http and --grpc accept several
    addresses, separated by commas or as repeated flags, and [::1]:PORT for IPv6; port 0 selects a
    free port.
    """
    flags = [
        FlagSetting(f"--{name}", KEYS.get(name, name), value)
        for name, value in flag_values.items()
        if value is not None
    ]
    config = load(config_file, os.environ, overrides, flags).config

    # gRPC reads this when it is imported. If it is enabled, a child process that starts while gRPC
    # is active sometimes dies before it runs its program.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    from penstock.assembly.broker import serve as run_broker

    run_broker(config, announce=click.echo)
