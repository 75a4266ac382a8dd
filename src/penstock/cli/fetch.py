"""`penstock fetch`: messages of one partition from an offset on, as a table."""

from __future__ import annotations

import json

import click

from penstock.cli import broker


@click.command()
@click.option("--topic", required=True, metavar="TOPIC", help="Topic to fetch from.")
@click.option("--offset", type=click.IntRange(0), required=True, metavar="N", help="First offset.")
@broker.partition_value
@click.option("--timeout", type=int, metavar="MS", help="Longest wait for messages.")
@click.option("--max-messages", type=int, metavar="N", help="At most this many.")
@click.option("--min-messages", type=int, metavar="N", help="Wait until there are this many.")
@broker.namespace
@broker.url
@broker.as_json
@click.pass_context
def fetch(
    context: click.Context,
    topic: str,
    offset: int,
    partition_value: str | None,
    timeout: int | None,
    max_messages: int | None,
    min_messages: int | None,
    namespace: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Fetch messages; with --json every message is a line."""
    import msgspec

    from penstock.cli.table import render
    from penstock.client import calls
    from penstock.formats.api import FetchError

    client, name = broker.connect(url), broker.topic_name(topic, namespace)
    tagged = client.run(calls.tag_text(name, partition_value))
    limits = calls.limits(timeout, min_messages, max_messages)
    answer = client.run(calls.fetch_json(name, offset, tagged, limits))
    place = f"Topic: {answer.topic}, Partition: {tagged}"
    if isinstance(answer, FetchError):
        click.echo(f"{place}, Error: {answer.message}", err=True)
        context.exit(1)
    messages = msgspec.json.decode(answer.messages, type=list[dict[str, object]])
    if as_json:
        for message in messages:
            click.echo(json.dumps(message, ensure_ascii=False))
        return
    click.echo(f"{place}, Start: {answer.start_offset}, End: {answer.end_offset}\n")
    for line in render(messages):
        click.echo(line)
