"""`penstock tail`: messages as they come, a line each."""

from __future__ import annotations

import json
from typing import Final

import click

from penstock.cli import broker

WAIT_MS: Final = 10_000


@click.command()
@click.argument("topic")
@click.option("--offset", default="latest", show_default=True, help="A number, earliest or latest.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after so many messages.")
@broker.partition_value
@broker.namespace
@broker.url
@broker.as_json
def tail(
    topic: str,
    offset: str,
    count: int | None,
    partition_value: str | None,
    namespace: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Show messages from now on, until interrupted."""
    import msgspec

    from penstock.client import calls
    from penstock.client.exchange import BrokerRefused
    from penstock.formats.api import FetchError

    client, name = broker.connect(url), broker.topic_name(topic, namespace)
    tagged = client.run(calls.tag_text(name, partition_value))
    start: int | str = int(offset) if offset.isdecimal() else offset
    following = client.run(calls.resolve(name, start, tagged))
    shown = 0
    while count is None or shown < count:
        most = None if count is None else min(count - shown, 10_000)
        limits = calls.limits(WAIT_MS, None, most)
        answer = client.run(calls.fetch_json(name, following, tagged, limits))
        if isinstance(answer, FetchError):
            raise BrokerRefused(200, answer.message)
        messages = msgspec.json.decode(answer.messages, type=list[dict[str, object]])
        for message in messages:
            click.echo(json.dumps(message, ensure_ascii=False) if as_json else _line(message))
        if messages:
            following = answer.end_offset + 1
            shown += len(messages)


def _line(message: dict[str, object]) -> str:
    """A raw message as `time subject payload`, a row as it is."""
    if "payload" not in message and "payload_b64" not in message:
        return json.dumps(message, ensure_ascii=False)
    payload = message.get("payload", message.get("payload_b64"))
    return f"{message['timestamp']} {message['subject']} {payload}"
