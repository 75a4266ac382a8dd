"""`penstock fetch`, `penstock tail` and `penstock get`: commands that read messages."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import click

from penstock.cli import options
from penstock.cli.options import connect, topic_name
from penstock.cli.output import print_table

TAIL_WAIT_MS: Final = 10_000
TAIL_MESSAGES_MAX: Final = 10_000


@click.command()
@click.option("--topic", required=True, metavar="TOPIC", help="Topic to fetch from.")
@click.option("--offset", type=click.IntRange(0), required=True, metavar="N", help="First offset.")
@options.partition_value
@click.option("--timeout", type=int, metavar="MS", help="Maximum time to wait for messages.")
@click.option("--max-messages", type=int, metavar="N", help="Maximum number of messages.")
@click.option("--min-messages", type=int, metavar="N", help="Number of messages to wait for.")
@options.namespace
@options.url
@options.as_json
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
    """Fetch messages of one partition from an offset on, as a table."""
    from penstock.client import fetch_json, fetch_limits, parse_partition
    from penstock.formats.api import FetchError

    client, name = connect(url), topic_name(topic, namespace)
    tagged = client.run(parse_partition(name, partition_value))
    limits = fetch_limits(timeout, min_messages, max_messages)
    result = client.run(fetch_json(name, offset, tagged, limits))
    heading = f"Topic: {result.topic}, Partition: {tagged}"
    if isinstance(result, FetchError):
        click.echo(f"{heading}, Error: {result.message}", err=True)
        context.exit(1)
    messages = _decode(result.messages)
    if as_json:
        for message in messages:
            click.echo(_json(message))
        return
    click.echo(f"{heading}, Start: {result.start_offset}, End: {result.end_offset}\n")
    print_table(messages)


@click.command()
@click.argument("topic")
@click.option("--offset", default="latest", show_default=True, help="A number, earliest or latest.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after this many messages.")
@options.partition_value
@options.namespace
@options.url
@options.as_json
def tail(
    topic: str,
    offset: str,
    count: int | None,
    partition_value: str | None,
    namespace: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Show new messages, one a line, until interrupted."""
    from penstock.client import (
        BrokerRefused,
        fetch_json,
        fetch_limits,
        parse_partition,
        resolve_offset,
    )
    from penstock.formats.api import FetchError

    client, name = connect(url), topic_name(topic, namespace)
    tagged = client.run(parse_partition(name, partition_value))
    start: int | str = int(offset) if offset.isdecimal() else offset
    next_offset = client.run(resolve_offset(name, start, tagged))
    shown = 0
    while count is None or shown < count:
        messages_max = None if count is None else min(count - shown, TAIL_MESSAGES_MAX)
        limits = fetch_limits(TAIL_WAIT_MS, None, messages_max)
        result = client.run(fetch_json(name, next_offset, tagged, limits))
        if isinstance(result, FetchError):
            raise BrokerRefused(200, result.message, result.code)
        messages = _decode(result.messages)
        for message in messages:
            click.echo(_json(message) if as_json else _line(message))
        if messages:
            next_offset = result.end_offset + 1
            shown += len(messages)


@click.command()
@click.argument("topic")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="The message at this offset.")
@click.option("--last", metavar="SUBJECT", help="The last message of a subject.")
@click.option("--next", "next_", metavar="SUBJECT", help="The next message of a subject or filter.")
@click.option(
    "--from", "start", type=click.IntRange(0), metavar="N", help="Start offset of --next."
)
@options.partition_value
@options.namespace
@options.url
@options.as_json
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
    """Show one message: the payload of a raw one, a row as JSON."""
    from penstock.client import get_message, message_query, parse_partition

    if sum(selector is not None for selector in (offset, last, next_)) != 1:
        raise click.UsageError("use one of --offset, --last and --next")
    if start is not None and next_ is None:
        raise click.UsageError("--from needs --next")
    client, name = connect(url), topic_name(topic, namespace)
    tagged = client.run(parse_partition(name, partition_value))
    query = message_query(offset, last, next_, start)
    message = client.run(get_message(name, tagged, query))
    if as_json:
        click.echo(_json({"offset": message.offset, **message.fields}))
    elif "payload_b64" in message.fields:
        click.echo(base64.b64decode(message.fields["payload_b64"]), nl=False)
    elif "payload" in message.fields:
        click.echo(message.fields["payload"])
    else:
        click.echo(_json(message.fields))


def _decode(messages: bytes) -> list[dict[str, object]]:
    import msgspec

    return msgspec.json.decode(messages, type=list[dict[str, object]])


def _json(message: dict[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False)


def _line(message: dict[str, object]) -> str:
    """A raw message as `time subject payload`, a row as JSON."""
    if "payload" not in message and "payload_b64" not in message:
        return _json(message)
    payload = message.get("payload", message.get("payload_b64"))
    return f"{message['timestamp']} {message['subject']} {payload}"
