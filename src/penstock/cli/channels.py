"""`penstock channel`, `penstock producer` and `penstock consumer`: the channel API."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

from penstock.cli import options
from penstock.cli.options import connect
from penstock.cli.output import last_segment, print_json, print_record, print_rows

_FORM: Final = "application/x-www-form-urlencoded"


def put_command(kind: str, description: str) -> click.Command:
    """A command `put NAME` that creates or changes a channel or a producer."""

    @click.command("put", help=description)
    @click.argument("name")
    @click.option("--token", metavar="TOKEN", help="Its token.  [default: a random one]")
    @click.option("--title", metavar="TEXT", help="Its display name.  [default: NAME]")
    @options.url
    @options.as_json
    def put(
        name: str, token: str | None, title: str | None, url: str | None, as_json: bool
    ) -> None:
        from penstock.client import put_record

        conversation = put_record((kind, name), form_fields(token=token, name=title))
        print_record(connect(url).run(conversation), as_json)

    return put


def list_command(kinds: str) -> click.Command:
    """A command `list` that prints the names of all channels or producers."""

    @click.command("list", help=f"List {kinds}, newest first.")
    @options.url
    def list_(url: str | None) -> None:
        from penstock.client import list_records

        for record_url in connect(url).run(list_records(kinds)):
            click.echo(last_segment(record_url))

    return list_


def form_fields(**values: str | None) -> dict[str, str]:
    """The fields that have a value."""
    return {name: value for name, value in values.items() if value is not None}


def call_as_consumer(
    url: str | None, channel: str, consumer: str, method: str, *parts: str, **request: Any
) -> dict[str, Any]:
    """Send a request on behalf of a consumer and return the reply's JSON."""
    from penstock import client

    call = client.call_as_consumer(channel, consumer, method, *parts, **request)
    return connect(url).run(call)


# -- channels


@click.group()
def channel() -> None:
    """Create channels, send messages to them and show messages."""


channel.add_command(
    put_command("channel", "Create a channel and its topic, or change fields of a channel.")
)
channel.add_command(list_command("channels"))


@channel.command("info")
@click.argument("name")
@options.url
@options.as_json
def show_channel(name: str, url: str | None, as_json: bool) -> None:
    """Show a channel, its token and its number of messages."""
    from penstock.client import get_record

    client = connect(url)
    record = client.run(get_record("channel", name))
    status = client.run(get_record("channel", name, "messages-status"))
    counts = {key: facts["Count"] for key, facts in status["counts"].items()}
    print_record(record | {"Messages": counts}, as_json)


@channel.command()
@click.argument("name")
@click.argument("message")
@click.option("--producer", required=True, metavar="NAME", help="The sending producer.")
@click.option("--type", "content_type", default="application/json", show_default=True)
@click.option("--id", "id_", metavar="ID", help="Message id; an id can be used only once.")
@click.option("--priority", type=int, metavar="N", help="Higher priorities are delivered first.")
@click.option("--at", metavar="TIME", help="Time to send it, such as 2030-01-01T09:00:00Z.")
@options.url
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
    """Send a message to every consumer of a channel and print its URL; - reads standard input."""
    from penstock.client import broadcast_message

    payload = sys.stdin.buffer.read() if message == "-" else message.encode()
    headers = {
        "X-Broker-Message-ID": id_,
        "X-Broker-Message-Priority": None if priority is None else str(priority),
        "X-Broker-Scheduled-For": at,
    }
    chosen = {header: value for header, value in headers.items() if value is not None}
    conversation = broadcast_message(name, producer, payload, content_type, chosen)
    click.echo(connect(url).run(conversation))


@channel.command()
@click.argument("name")
@click.argument("id_", metavar="[ID]", required=False)
@options.url
@options.as_json
def messages(name: str, id_: str | None, url: str | None, as_json: bool) -> None:
    """List the ids of a channel's messages, newest first, or show one message and its jobs."""
    from penstock.client import get_record, list_records

    client = connect(url)
    if id_ is None:
        for message_url in client.run(list_records("channel", name, "messages")):
            click.echo(last_segment(message_url))
        return
    message = client.run(get_record("channel", name, "message", id_))
    if as_json:
        print_json(message)
        return
    jobs = message.pop("Jobs")
    print_record(message, as_json)
    print_rows(jobs, as_json)


# -- producers


@click.group()
def producer() -> None:
    """Create and show producers, which may broadcast to channels."""


producer.add_command(put_command("producer", "Create a producer, or change fields of one."))
producer.add_command(list_command("producers"))


@producer.command("info")
@click.argument("name")
@options.url
@options.as_json
def show_producer(name: str, url: str | None, as_json: bool) -> None:
    """Show a producer and its token."""
    from penstock.client import get_record

    print_record(connect(url).run(get_record("producer", name)), as_json)


# -- consumers


@click.group()
def consumer() -> None:
    """Create, change and watch consumers of channels, and replay messages to them."""


@consumer.command("put")
@click.argument("channel")
@click.argument("name")
@click.option("--callback", metavar="URL", help="URL that receives deliveries.")
@click.option(
    "--type", "kind", type=click.Choice(["push", "pull"]), help="[default: push for a new one]"
)
@click.option("--token", metavar="TOKEN", help="Its token.  [default: a random one]")
@click.option("--title", metavar="TEXT", help="Its display name.  [default: NAME]")
@options.url
@options.as_json
def put_consumer(
    channel: str,
    name: str,
    callback: str | None,
    kind: str | None,
    token: str | None,
    title: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Create a consumer of a channel, or change fields of one."""
    from penstock.client import put_record

    fields = form_fields(callbackUrl=callback, type=kind, token=token, name=title)
    conversation = put_record(("channel", channel, "consumer", name), fields)
    print_record(connect(url).run(conversation), as_json)


@consumer.command("list")
@click.argument("channel")
@options.url
def list_consumers(channel: str, url: str | None) -> None:
    """List the consumers of a channel, newest first."""
    from penstock.client import list_records

    for consumer_url in connect(url).run(list_records("channel", channel, "consumers")):
        click.echo(last_segment(consumer_url))


@consumer.command("info")
@click.argument("channel")
@click.argument("name")
@options.url
@options.as_json
def show_consumer(channel: str, name: str, url: str | None, as_json: bool) -> None:
    """Show a consumer, its token, secrets and limits."""
    from penstock.client import get_record

    record = connect(url).run(get_record("channel", channel, "consumer", name))
    limits = call_as_consumer(url, channel, name, "GET", "limits")
    secrets = call_as_consumer(url, channel, name, "GET", "secret")
    print_record(record | limits | secrets, as_json)


@consumer.command("delete")
@click.argument("channel")
@click.argument("name")
@options.url
def delete_consumer_command(channel: str, name: str, url: str | None) -> None:
    """Delete a consumer and its jobs."""
    from penstock.client import delete_consumer

    connect(url).run(delete_consumer(channel, name))
    click.echo(f"deleted {name}")


@consumer.command()
@click.argument("channel")
@click.argument("name")
@click.option(
    "--rate", type=int, default=0, metavar="N", help="Maximum deliveries a second (0 = no limit)."
)
@click.option(
    "--concurrency",
    type=int,
    default=0,
    metavar="N",
    help="Maximum concurrent deliveries (0 = default).",
)
@options.url
@options.as_json
def limit(
    channel: str, name: str, rate: int, concurrency: int, url: str | None, as_json: bool
) -> None:
    """Limit the deliveries to a consumer."""
    body = f"ratePerSecond={rate}&concurrency={concurrency}".encode()
    limits = call_as_consumer(url, channel, name, "PUT", "limits", body=body, content_type=_FORM)
    print_record(limits, as_json)


@consumer.command()
@click.argument("channel")
@click.argument("name")
@options.url
def disable(channel: str, name: str, url: str | None) -> None:
    """Stop deliveries to a consumer until it is enabled; its jobs stay queued."""
    call_as_consumer(url, channel, name, "POST", "disable")
    click.echo(f"disabled {name}")


@consumer.command()
@click.argument("channel")
@click.argument("name")
@options.url
def enable(channel: str, name: str, url: str | None) -> None:
    """Resume deliveries to a consumer."""
    call_as_consumer(url, channel, name, "POST", "enable")
    click.echo(f"enabled {name}")


@consumer.command("rotate-secret")
@click.argument("channel")
@click.argument("name")
@options.url
def rotate_secret(channel: str, name: str, url: str | None) -> None:
    """Create a new signing secret and print it; the old one remains valid for a while."""
    reply = call_as_consumer(url, channel, name, "POST", "rotate-secret")
    click.echo(reply["Secrets"][0])


@consumer.command()
@click.argument("channel")
@click.argument("name")
@click.option("--from", "start", metavar="OFFSET|TIME", default="0", show_default=True)
@click.option("--to", "stop", metavar="OFFSET|TIME", help="Exclusive end.  [default: the end]")
@options.url
def replay(channel: str, name: str, start: str, stop: str | None, url: str | None) -> None:
    """Deliver a range of messages again, including those older than the consumer."""
    bounds: dict[str, int | str] = {"From": _offset_or_time(start)}
    if stop is not None:
        bounds["To"] = _offset_or_time(stop)
    body = json.dumps(bounds).encode()
    reply = call_as_consumer(url, channel, name, "POST", "replay", body=body)
    click.echo(f"queued {reply['requeuedCount']} jobs again")


@consumer.command()
@click.argument("channel")
@click.argument("name")
@options.url
@options.as_json
def attempts(channel: str, name: str, url: str | None, as_json: bool) -> None:
    """Show recent deliveries with their result and latency."""
    print_rows(call_as_consumer(url, channel, name, "GET", "attempts")["Attempts"], as_json)


def _offset_or_time(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text
