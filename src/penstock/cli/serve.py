"""`penstock serve`: runs the broker in the foreground."""

import os
from pathlib import Path
from typing import Final

import click

from penstock.cli import options
from penstock.config import Flag, load

KEYS: Final = {"nats": "nats.listen", "http": "http.listen", "grpc": "grpc.listen"}
"""Flags whose setting has another name."""


@click.command()
@options.config_file
@click.option("--data", metavar="DIR", help="Data directory.  [default: ./data]")
@click.option("--nats", metavar="HOST:PORT", help="NATS door.  [default: 127.0.0.1:4222]")
@click.option("--http", metavar="HOST:PORT", help="HTTP door.  [default: 127.0.0.1:8080]")
@click.option("--grpc", metavar="HOST:PORT", help="gRPC door.  [default: 127.0.0.1:7777]")
@click.option(
    "--role",
    metavar="all|fetch",
    help="A broker, or a node that only fetches and keeps nothing.  [default: all]",
)
@click.option(
    "--metadata",
    metavar="HOST:PORT",
    help="With --role fetch: gRPC door of the broker to ask.  [default: 127.0.0.1:7777]",
)
@options.overrides
def serve(config_file: Path | None, overrides: tuple[str, ...], **given: str | None) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Prints one line for every door that is open; port 0 takes a free one and the line tells it.
    """
    flags = [
        Flag(f"--{name}", KEYS.get(name, name), value)
        for name, value in given.items()
        if value is not None
    ]
    config = load(config_file, os.environ, overrides, flags).config

    # Read when it is imported. With it, a child process that is started while gRPC is at work dies
    # now and then before it runs its program.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    from penstock.assembly.broker import serve as run_broker

    run_broker(config, announce=click.echo)
