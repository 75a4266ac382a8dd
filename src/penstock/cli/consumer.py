"""`penstock consumer`: who gets the messages of a channel."""

from __future__ import annotations

from typing import Any, Final

import click

from penstock.cli import broker
from penstock.cli.records import fields, name_of, tell_record, tell_rows

_FORM: Final = "application/x-www-form-urlencoded"


@click.group()
def consumer() -> None:
    """Make consumers of channels, look after them, deliver again."""


@consumer.command()
@click.argument("channel")
@click.argument("name")
@click.option("--callback", metavar="URL", help="Where deliveries go.")
@click.option(
    "--type", "kind", type=click.Choice(["push", "pull"]), help="[default: push for a new one]"
)
@click.option("--token", metavar="TOKEN", help="Its token.  [default: a random one]")
@click.option("--title", metavar="TEXT", help="Its name for people.  [default: NAME]")
@broker.url
@broker.as_json
def put(
    channel: str,
    name: str,
    callback: str | None,
    kind: str | None,
    token: str | None,
    title: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Make a consumer of a channel, or change what is given of one."""
    from penstock.client import channel_calls

    given = fields(callbackUrl=callback, type=kind, token=token, name=title)
    place = ("channel", channel, "consumer", name)
    tell_record(broker.connect(url).run(channel_calls.write(place, given)), as_json)


@consumer.command("list")
@click.argument("channel")
@broker.url
def list_(channel: str, url: str | None) -> None:
    """List the consumers of a channel, newest first."""
    from penstock.client import channel_calls

    for found in broker.connect(url).run(channel_calls.listed("channel", channel, "consumers")):
        click.echo(name_of(found))


@consumer.command()
@click.argument("channel")
@click.argument("name")
@broker.url
@broker.as_json
def info(channel: str, name: str, url: str | None, as_json: bool) -> None:
    """Show a consumer, its token, secrets and limits."""
    from penstock.client import channel_calls

    client = broker.connect(url)
    found = client.run(channel_calls.show("channel", channel, "consumer", name))
    limits = _call(url, channel, name, "GET", "limits")
    tell_record(found | limits | _call(url, channel, name, "GET", "secret"), as_json)


@consumer.command()
@click.argument("channel")
@click.argument("name")
@broker.url
def delete(channel: str, name: str, url: str | None) -> None:
    """Delete a consumer and its jobs."""
    from penstock.client import channel_calls

    broker.connect(url).run(channel_calls.remove_consumer(channel, name))
    click.echo(f"deleted {name}")


@consumer.command()
@click.argument("channel")
@click.argument("name")
@click.option("--rate", type=int, default=0, metavar="N", help="Deliveries a second; 0: no limit.")
@click.option("--concurrency", type=int, default=0, metavar="N", help="Calls at a time; 0: usual.")
@broker.url
@broker.as_json
def limit(
    channel: str, name: str, rate: int, concurrency: int, url: str | None, as_json: bool
) -> None:
    """Limit what is pushed to a consumer."""
    body = f"ratePerSecond={rate}&concurrency={concurrency}".encode()
    answer = _call(url, channel, name, "PUT", "limits", body=body, content_type=_FORM)
    tell_record(answer, as_json)


@consumer.command()
@click.argument("channel")
@click.argument("name")
@broker.url
def disable(channel: str, name: str, url: str | None) -> None:
    """Push nothing to a consumer until it is enabled again; its jobs wait."""
    _call(url, channel, name, "POST", "disable")
    click.echo(f"disabled {name}")


@consumer.command()
@click.argument("channel")
@click.argument("name")
@broker.url
def enable(channel: str, name: str, url: str | None) -> None:
    """Push to a consumer again."""
    _call(url, channel, name, "POST", "enable")
    click.echo(f"enabled {name}")


@consumer.command("rotate-secret")
@click.argument("channel")
@click.argument("name")
@broker.url
def rotate_secret(channel: str, name: str, url: str | None) -> None:
    """Sign deliveries with a new secret, and print it; the old one signs along for a while."""
    click.echo(_call(url, channel, name, "POST", "rotate-secret")["Secrets"][0])


@consumer.command()
@click.argument("channel")
@click.argument("name")
@click.option("--from", "start", metavar="OFFSET|TIME", default="0", show_default=True)
@click.option("--to", "stop", metavar="OFFSET|TIME", help="Not included.  [default: the end]")
@broker.url
def replay(channel: str, name: str, start: str, stop: str | None, url: str | None) -> None:
    """Deliver a range of messages again, also those from before the consumer was there."""
    import json

    asked: dict[str, Any] = {"From": _place(start)}
    if stop is not None:
        asked["To"] = _place(stop)
    answer = _call(url, channel, name, "POST", "replay", body=json.dumps(asked).encode())
    click.echo(f"queued {answer['requeuedCount']} jobs again")


@consumer.command()
@click.argument("channel")
@click.argument("name")
@broker.url
@broker.as_json
def attempts(channel: str, name: str, url: str | None, as_json: bool) -> None:
    """Show the last deliveries: what was answered, and how long it took."""
    tell_rows(_call(url, channel, name, "GET", "attempts")["Attempts"], as_json)


def _place(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text


def _call(
    url: str | None, channel: str, name: str, method: str, *parts: str, **given: Any
) -> dict[str, Any]:
    from penstock.client import channel_calls

    call = channel_calls.as_consumer(channel, name, method, *parts, **given)
    return broker.connect(url).run(call)
