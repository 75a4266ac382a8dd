"""`penstock get`: one message."""

from __future__ import annotations

import base64
import json

import click

from penstock.cli import broker


@click.command()
@click.argument("topic")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="The message at this offset.")
@click.option("--last", metavar="SUBJECT", help="The last message of a subject.")
@click.option("--next", "next_", metavar="SUBJECT", help="The next of a subject; wildcards work.")
@click.option("--from", "start", type=click.IntRange(0), metavar="N", help="Where --next begins.")
@broker.partition_value
@broker.namespace
@broker.url
@broker.as_json
def get(
    topic: str,
    offset: int | None,
    last: str | None,
    next_: str | None,
    start: int | None,
    partition_value: str | None,
    namespace: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Show one message: the payload of a raw one as it is, a row as JSON."""
    from penstock.client import calls

    if sum(way is not None for way in (offset, last, next_)) != 1:
        raise click.UsageError("give one of --offset, --last and --next")
    if start is not None and next_ is None:
        raise click.UsageError("--from goes with --next")
    client, name = broker.connect(url), broker.topic_name(topic, namespace)
    tagged = client.run(calls.tag_text(name, partition_value))
    query = calls.choice(offset, last, next_, start)
    message = client.run(calls.get(name, tagged, query))
    if as_json:
        click.echo(json.dumps({"offset": message.offset, **message.fields}, ensure_ascii=False))
    elif "payload_b64" in message.fields:
        click.echo(base64.b64decode(message.fields["payload_b64"]), nl=False)
    elif "payload" in message.fields:
        click.echo(message.fields["payload"])
    else:
        click.echo(json.dumps(message.fields, ensure_ascii=False))
