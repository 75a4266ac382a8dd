"""`penstock producer`: who may broadcast."""

from __future__ import annotations

import click

from penstock.cli import broker
from penstock.cli.records import fields, name_of, tell_record


@click.group()
def producer() -> None:
    """Make and look at producers: who may broadcast to channels."""


@producer.command()
@click.argument("name")
@click.option("--token", metavar="TOKEN", help="Its token.  [default: a random one]")
@click.option("--title", metavar="TEXT", help="Its name for people.  [default: NAME]")
@broker.url
@broker.as_json
def put(name: str, token: str | None, title: str | None, url: str | None, as_json: bool) -> None:
    """Make a producer, or change what is given of one."""
    from penstock.client import channel_calls

    given = fields(token=token, name=title)
    made = broker.connect(url).run(channel_calls.write(("producer", name), given))
    tell_record(made, as_json)


@producer.command("list")
@broker.url
def list_(url: str | None) -> None:
    """List producers, newest first."""
    from penstock.client import channel_calls

    for found in broker.connect(url).run(channel_calls.listed("producers")):
        click.echo(name_of(found))


@producer.command()
@click.argument("name")
@broker.url
@broker.as_json
def info(name: str, url: str | None, as_json: bool) -> None:
    """Show a producer and its token."""
    from penstock.client import channel_calls

    tell_record(broker.connect(url).run(channel_calls.show("producer", name)), as_json)
