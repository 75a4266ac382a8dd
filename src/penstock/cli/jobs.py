"""`penstock job` and `penstock dlq`: jobs of channel consumers and their dead letters."""

from __future__ import annotations

import json
from typing import Any

import click

from penstock.cli import options
from penstock.cli.channels import call_as_consumer
from penstock.cli.options import connect
from penstock.cli.output import print_record, print_rows


@click.group()
def job() -> None:
    """List, claim and finish jobs of pull consumers."""


@job.command("list")
@click.argument("channel")
@click.argument("consumer")
@click.option("--limit", type=int, default=25, show_default=True, help="At most 100.")
@options.url
@options.as_json
def list_jobs(channel: str, consumer: str, limit: int, url: str | None, as_json: bool) -> None:
    """List queued jobs in the order of their delivery."""
    query = {"limit": str(limit)}
    reply = call_as_consumer(url, channel, consumer, "GET", "queued-jobs", query=query)
    _print_jobs(reply["Result"], as_json)


@job.command()
@click.argument("channel")
@click.argument("consumer")
@click.option("--limit", type=int, default=1, show_default=True, help="At most 100.")
@click.option(
    "--timeout", type=int, default=0, metavar="SECONDS", help="Time beyond the usual timeout."
)
@options.url
@options.as_json
def claim(
    channel: str, consumer: str, limit: int, timeout: int, url: str | None, as_json: bool
) -> None:
    """Claim queued jobs, each with a lease of its own."""
    query = {"limit": str(limit), "timeout": str(timeout)}
    reply = call_as_consumer(url, channel, consumer, "POST", "claim", query=query)
    _print_jobs(reply["Result"], as_json)


@job.command("info")
@click.argument("channel")
@click.argument("consumer")
@click.argument("id_", metavar="ID")
@options.url
@options.as_json
def show_job(channel: str, consumer: str, id_: str, url: str | None, as_json: bool) -> None:
    """Show a job."""
    print_record(call_as_consumer(url, channel, consumer, "GET", "job", id_), as_json)


@job.command()
@click.argument("channel")
@click.argument("consumer")
@click.argument("id_", metavar="ID")
@click.argument("state", type=click.Choice(["INFLIGHT", "DELIVERED", "DEAD"], case_sensitive=False))
@click.option(
    "--timeout", type=int, metavar="SECONDS", help="With INFLIGHT: time beyond the usual timeout."
)
@click.option("--lease", metavar="LEASE", help="Refuse if another client holds the job by now.")
@options.url
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
    change: dict[str, Any] = {"NextState": state.upper()}
    if timeout is not None:
        change["IncrementalTimeout"] = timeout
    headers = () if lease is None else (("X-Broker-Lease", lease),)
    body = json.dumps(change).encode()
    call_as_consumer(url, channel, consumer, "POST", "job", id_, body=body, headers=headers)
    click.echo(f"{id_} is {state.upper()}")


def _print_jobs(jobs: list[dict[str, Any]], as_json: bool) -> None:
    print_rows(jobs if as_json else list(map(_job_row, jobs)), as_json)


def _job_row(job: dict[str, Any]) -> dict[str, Any]:
    message = job["Message"]
    row = {
        "id": job["ID"],
        "priority": job["Priority"],
        "message": message["MessageID"],
        "payload": message["Payload"],
    }
    return row | ({"lease": job["Lease"]} if "Lease" in job else {})


# -- dead letters


@click.group()
def dlq() -> None:
    """List, requeue and purge dead jobs."""


@dlq.command()
@options.url
@options.as_json
def status(url: str | None, as_json: bool) -> None:
    """Show how many dead jobs each consumer has."""
    from penstock.client import get_record

    print_rows(connect(url).run(get_record("dlq-status"))["consumers"], as_json)


@dlq.command("list")
@click.argument("channel")
@click.argument("consumer")
@options.url
@options.as_json
def list_dead_jobs(channel: str, consumer: str, url: str | None, as_json: bool) -> None:
    """List the dead jobs of a consumer, newest first."""
    from penstock.client import list_records

    path = ("channel", channel, "consumer", consumer, "dlq")
    jobs = connect(url).run(list_records(*path, key="DeadJobs"))
    rows = [
        {
            "id": job["JobRequeueURL"].split("/")[-2],
            "message": job["MessageURL"].rpartition("/")[2],
            "since": job["StatusChangedAt"],
        }
        for job in jobs
    ]
    print_rows(jobs if as_json else rows, as_json)


@dlq.command()
@click.argument("channel")
@click.argument("consumer")
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@options.url
def requeue(channel: str, consumer: str, ids: tuple[str, ...], url: str | None) -> None:
    """Requeue the given dead jobs, or all, with all their attempts."""
    from penstock.client import requeue_dead_jobs

    if not ids:
        connect(url).run(requeue_dead_jobs(channel, consumer))
        click.echo("queued all dead jobs again")
    for id_ in ids:
        call_as_consumer(url, channel, consumer, "POST", "job", id_, "requeue-dead-job")
        click.echo(f"queued {id_} again")


@dlq.command()
@click.argument("channel")
@click.argument("consumer")
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@options.url
def purge(channel: str, consumer: str, ids: tuple[str, ...], url: str | None) -> None:
    """Delete the given dead jobs, or all; jobs with attempts left are refused."""
    if not ids:
        reply = call_as_consumer(url, channel, consumer, "DELETE", "dlq")
        click.echo(f"forgot {reply['deletedCount']} jobs")
    for id_ in ids:
        call_as_consumer(url, channel, consumer, "DELETE", "job", id_)
        click.echo(f"forgot {id_}")
