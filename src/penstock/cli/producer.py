"""`penstock producer`: who may broadcast."""

from __future__ import annotations

import click

from penstock.cli import broker
from penstock.cli.named import list_command, put_command
from penstock.cli.records import tell_record


@click.group()
def producer() -> None:
    """Make and look at producers: who may broadcast to channels."""


producer.add_command(put_command("producer", "Make a producer, or change what is given of one."))
producer.add_command(list_command("producers"))


@producer.command()
@click.argument("name")
@broker.url
@broker.as_json
def info(name: str, url: str | None, as_json: bool) -> None:
    """Show a producer and its token."""
    from penstock.client import channel_calls

    tell_record(broker.connect(url).run(channel_calls.show("producer", name)), as_json)
