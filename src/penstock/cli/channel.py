"""`penstock channel`: channels, and messages to them."""

from __future__ import annotations

import sys

import click

from penstock.cli import broker
from penstock.cli.named import list_command, put_command
from penstock.cli.records import name_of, tell_record, tell_rows


@click.group()
def channel() -> None:
    """Make channels, broadcast to them, look at their messages."""


channel.add_command(
    put_command("channel", "Make a channel and its topic, or change what is given of one.")
)
channel.add_command(list_command("channels"))


@channel.command()
@click.argument("name")
@broker.url
@broker.as_json
def info(name: str, url: str | None, as_json: bool) -> None:
    """Show a channel, its token, and how many messages it has."""
    from penstock.client import channel_calls

    client = broker.connect(url)
    found = client.run(channel_calls.show("channel", name))
    status = client.run(channel_calls.show("channel", name, "messages-status"))
    counts = {key: facts["Count"] for key, facts in status["counts"].items()}
    tell_record(found | {"Messages": counts}, as_json)


@channel.command()
@click.argument("name")
@click.argument("message")
@click.option("--producer", required=True, metavar="NAME", help="Who sends it.")
@click.option("--type", "content_type", default="application/json", show_default=True)
@click.option("--id", "id_", metavar="ID", help="Its id; one that was sent is refused.")
@click.option("--priority", type=int, metavar="N", help="Higher ones are delivered first.")
@click.option("--at", metavar="TIME", help="When to send it, such as 2030-01-01T09:00:00Z.")
@broker.url
def broadcast(
    name: str,
    message: str,
    producer: str,
    content_type: str,
    id_: str | None,
    priority: int | None,
    at: str | None,
    url: str | None,
) -> None:
    """Send a message to every consumer of a channel, and print where it is; - reads it."""
    from penstock.client import channel_calls

    payload = sys.stdin.buffer.read() if message == "-" else message.encode()
    options = {
        "X-Broker-Message-ID": id_,
        "X-Broker-Message-Priority": None if priority is None else str(priority),
        "X-Broker-Scheduled-For": at,
    }
    given = {header: value for header, value in options.items() if value is not None}
    call = channel_calls.broadcast(name, producer, payload, content_type, given)
    click.echo(broker.connect(url).run(call))


@channel.command()
@click.argument("name")
@click.argument("id_", metavar="[ID]", required=False)
@broker.url
@broker.as_json
def messages(name: str, id_: str | None, url: str | None, as_json: bool) -> None:
    """List the ids of a channel's messages, newest first, or show one and its jobs."""
    from penstock.client import channel_calls

    client = broker.connect(url)
    if id_ is None:
        for found in client.run(channel_calls.listed("channel", name, "messages")):
            click.echo(name_of(found))
        return
    found = client.run(channel_calls.show("channel", name, "message", id_))
    if as_json:
        broker.tell(found)
        return
    jobs = found.pop("Jobs")
    tell_record(found, as_json)
    tell_rows(jobs, as_json)
