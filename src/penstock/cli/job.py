"""`penstock job`: jobs of consumers that pull."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli import broker
from penstock.cli.records import tell_record, tell_rows


@click.group()
def job() -> None:
    """List, claim and finish jobs of consumers that pull."""


@job.command("list")
@click.argument("channel")
@click.argument("consumer")
@click.option("--limit", type=int, default=25, show_default=True, help="At most 100.")
@broker.url
@broker.as_json
def list_(channel: str, consumer: str, limit: int, url: str | None, as_json: bool) -> None:
    """List queued jobs in the order of their delivery."""
    answer = _call(url, channel, consumer, "GET", "queued-jobs", query={"limit": str(limit)})
    tell_rows(answer["Result"] if as_json else list(map(_row, answer["Result"])), as_json)


@job.command()
@click.argument("channel")
@click.argument("consumer")
@click.option("--limit", type=int, default=1, show_default=True, help="At most 100.")
@click.option("--timeout", type=int, default=0, metavar="SECONDS", help="Beyond the usual time.")
@broker.url
@broker.as_json
def claim(
    channel: str, consumer: str, limit: int, timeout: int, url: str | None, as_json: bool
) -> None:
    """Take queued jobs, each with a lease that nobody else has."""
    query = {"limit": str(limit), "timeout": str(timeout)}
    answer = _call(url, channel, consumer, "POST", "claim", query=query)
    tell_rows(answer["Result"] if as_json else list(map(_row, answer["Result"])), as_json)


@job.command()
@click.argument("channel")
@click.argument("consumer")
@click.argument("id_", metavar="ID")
@broker.url
@broker.as_json
def info(channel: str, consumer: str, id_: str, url: str | None, as_json: bool) -> None:
    """Show a job."""
    tell_record(_call(url, channel, consumer, "GET", "job", id_), as_json)


@job.command()
@click.argument("channel")
@click.argument("consumer")
@click.argument("id_", metavar="ID")
@click.argument("state", type=click.Choice(["INFLIGHT", "DELIVERED", "DEAD"], case_sensitive=False))
@click.option("--timeout", type=int, metavar="SECONDS", help="With INFLIGHT: beyond the usual.")
@click.option("--lease", metavar="LEASE", help="Refuse if somebody else holds it by now.")
@broker.url
def move(
    channel: str,
    consumer: str,
    id_: str,
    state: str,
    timeout: int | None,
    lease: str | None,
    url: str | None,
) -> None:
    """Change the state of a job."""
    asked: dict[str, Any] = {"NextState": state.upper()}
    if timeout is not None:
        asked["IncrementalTimeout"] = timeout
    headers = () if lease is None else (("X-Broker-Lease", lease),)
    body = json.dumps(asked).encode()
    _call(url, channel, consumer, "POST", "job", id_, body=body, headers=headers)
    click.echo(f"{id_} is {state.upper()}")


def _row(found: dict[str, Any]) -> dict[str, Any]:
    message = found["Message"]
    row = {
        "id": found["ID"],
        "priority": found["Priority"],
        "message": message["MessageID"],
        "payload": message["Payload"],
    }
    return row | ({"lease": found["Lease"]} if "Lease" in found else {})


def _call(
    url: str | None, channel: str, consumer: str, method: str, *parts: str, **given: Any
) -> dict[str, Any]:
    from penstock.client import channel_calls

    call = channel_calls.as_consumer(channel, consumer, method, *parts, **given)
    return broker.connect(url).run(call)
