"""`penstock dlq`: jobs that were given up."""

from __future__ import annotations

import click

from penstock.cli import broker
from penstock.cli.records import tell_rows


@click.group()
def dlq() -> None:
    """List dead jobs, queue them again, forget them."""


@dlq.command()
@broker.url
@broker.as_json
def status(url: str | None, as_json: bool) -> None:
    """Show how many dead jobs each consumer has."""
    from penstock.client import channel_calls

    tell_rows(broker.connect(url).run(channel_calls.show("dlq-status"))["consumers"], as_json)


@dlq.command("list")
@click.argument("channel")
@click.argument("consumer")
@broker.url
@broker.as_json
def list_(channel: str, consumer: str, url: str | None, as_json: bool) -> None:
    """List the dead jobs of a consumer, newest first."""
    from penstock.client import channel_calls

    place = ("channel", channel, "consumer", consumer, "dlq")
    found = broker.connect(url).run(channel_calls.listed(*place, key="DeadJobs"))
    if as_json:
        tell_rows(found, as_json)
        return
    rows = [
        {
            "id": job["JobRequeueURL"].split("/")[-2],
            "message": job["MessageURL"].rpartition("/")[2],
            "since": job["StatusChangedAt"],
        }
        for job in found
    ]
    tell_rows(rows, as_json)


@dlq.command()
@click.argument("channel")
@click.argument("consumer")
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@broker.url
def requeue(channel: str, consumer: str, ids: tuple[str, ...], url: str | None) -> None:
    """Queue dead jobs again, these or all, as if never tried."""
    from penstock.client import channel_calls

    client = broker.connect(url)
    if not ids:
        client.run(channel_calls.requeue_all(channel, consumer))
        click.echo("queued all dead jobs again")
    for id_ in ids:
        parts = ("POST", "job", id_, "requeue-dead-job")
        client.run(channel_calls.as_consumer(channel, consumer, *parts))
        click.echo(f"queued {id_} again")


@dlq.command()
@click.argument("channel")
@click.argument("consumer")
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@broker.url
def purge(channel: str, consumer: str, ids: tuple[str, ...], url: str | None) -> None:
    """Forget dead jobs that have no retry left, these or all."""
    from penstock.client import channel_calls

    client = broker.connect(url)
    if not ids:
        answer = client.run(channel_calls.as_consumer(channel, consumer, "DELETE", "dlq"))
        click.echo(f"forgot {answer['deletedCount']} jobs")
    for id_ in ids:
        client.run(channel_calls.as_consumer(channel, consumer, "DELETE", "job", id_))
        click.echo(f"forgot {id_}")
