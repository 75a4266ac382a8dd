"""`penstock serve`: runs the broker in the foreground."""

import os
from pathlib import Path

import click

from penstock.cli import options
from penstock.config import Flag, load


@click.command()
@options.config_file
@click.option("--data", metavar="DIR", help="Data directory.  [default: ./data]")
@click.option("--http", metavar="HOST:PORT", help="HTTP door.  [default: 127.0.0.1:8080]")
@options.overrides
def serve(
    config_file: Path | None, data: str | None, http: str | None, overrides: tuple[str, ...]
) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Prints one line for every door that is open; port 0 takes a free one and the line tells it.
    """
    given = (("--data", "data", data), ("--http", "http.listen", http))
    flags = [Flag(name, key, value) for name, key, value in given if value is not None]
    config = load(config_file, os.environ, overrides, flags).config

    from penstock import assembly

    assembly.serve(config, announce=click.echo)
