"""`penstock pipeline`: jobs over whole topics, run by Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from penstock.cli.options import as_json, url
from penstock.cli.output import print_json

master: Final = click.option(
    "--master",
    metavar="URL",
    help="Spark master, such as spark://host:7077.  [default: local[*]]",
)
conf: Final = click.option(
    "--conf", "conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; repeatable."
)
option: Final = click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the data source, such as startingOffsets=1000; repeatable.",
)
dry_run: Final = click.option(
    "--dry-run", is_flag=True, help="Show the effect without changing anything."
)


@click.group()
def pipeline() -> None:
    """Run jobs over whole topics with Spark."""


class SparkCommand(NamedTuple):
    """The options that all commands of this group share."""

    url: str | None
    master: str | None
    settings: dict[str, str]
    options: dict[str, Any]
    """Options of the data source."""
    as_json: bool

    def spark(self) -> AbstractContextManager[Any]:
        """A Spark session for one command; raises ClickException if Spark is not installed."""
        try:
            from penstock.spark.pipelines import spark_job
        except ImportError as error:
            raise click.ClickException(
                f"Spark is not installed ({error}); run: pip install 'penstock[spark]'"
            ) from error
        return spark_job(
            self.url, self.master, self.settings, lambda line: click.echo(line, err=True)
        )


def on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all commands of this group share; the command receives them as `job`."""

    @wraps(command)
    def run_with_options(
        url: str | None,
        master: str | None,
        conf: tuple[str, ...],
        as_json: bool,
        options: tuple[str, ...] = (),
        **own: object,
    ) -> None:
        pairs = _pairs(conf, "--conf"), _pairs(options, "--option")
        command(job=SparkCommand(url, master, *pairs, as_json), **own)

    decorated: Callable[..., None] = run_with_options
    for decorate in (as_json, conf, master, url):
        decorated = decorate(decorated)
    return decorated


def _pairs(texts: tuple[str, ...], name: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{name} {text!r} must be written KEY=VALUE")
        pairs[key] = value
    return pairs


@pipeline.command()
@click.argument("topic")
@option
@on_spark
def audit(topic: str, job: SparkCommand) -> None:
    """Check a topic: manifest, bucket, every byte of its objects, and its hot tail."""
    with job.spark() as spark:
        from penstock.spark.pipelines import audit_topic

        result = audit_topic(spark, topic, **job.options)
    if job.as_json:
        print_json(
            {"objects": result.objects, "rows": result.rows, "hot_messages": result.hot_messages}
        )
    for finding in result.findings:
        if job.as_json:
            print_json(finding._asdict())
        elif not finding.harmless:
            click.echo(f"{finding.kind}: {finding.object}: {finding.problem}")
    if not job.as_json:
        counted = (
            f"{result.objects} objects, {result.rows} rows, {result.hot_messages} hot messages"
        )
        leftovers = sum(finding.harmless for finding in result.findings)
        click.echo(f"{counted}, {leftovers} leftovers: {'sound' if result.sound else 'NOT SOUND'}")
    if not result.sound:
        raise SystemExit(1)


@pipeline.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--where", metavar="CONDITION", help="Copy only messages that satisfy this SQL condition."
)
@click.option("--sql", metavar="QUERY", help="A query over the view `source`.")
@click.option("--name", help="Name of the replay; a replay is not repeated under its name.")
@dry_run
@option
@on_spark
def replay(
    source: str,
    target: str,
    where: str | None,
    sql: str | None,
    name: str | None,
    dry_run: bool,
    job: SparkCommand,
) -> None:
    """Copy messages of SOURCE into TARGET, all at once or not at all."""
    with job.spark() as spark:
        from penstock.spark.pipelines import replay_topic

        result = replay_topic(
            spark, source, target, where=where, sql=sql, name=name, dry_run=dry_run, **job.options
        )
    if job.as_json:
        print_json({"messages": result.messages, "dry_run": dry_run})
    else:
        click.echo(f"{result.messages} messages {'would be copied' if dry_run else 'copied'}")


@pipeline.command()
@click.argument("topic")
@click.option("--key", metavar="COLUMN", help="Key column.  [default: subject]")
@click.option("--into", metavar="PATH", help="Directory of the table.  [default: print JSON]")
@click.option("--format", "form", default="parquet", show_default=True, help="Format of the table.")
@option
@on_spark
def latest(topic: str, key: str | None, into: str | None, form: str, job: SparkCommand) -> None:
    """Write the newest message of every subject to a table."""
    with job.spark() as spark:
        from penstock.spark import topic as read_topic
        from penstock.spark.pipelines import json_lines, latest_messages

        frame = latest_messages(read_topic(spark, topic, **job.options), key)
        if into is None:
            for line in json_lines(frame):
                click.echo(line)
            return
        frame.write.format(form).mode("overwrite").save(into)
        rows = spark.read.format(form).load(into).count()
    if job.as_json:
        print_json({"rows": rows, "into": into})
    else:
        click.echo(f"{rows} rows in {into}")


@pipeline.command()
@click.argument("topic")
@click.option("--object-mib", default=128, show_default=True, help="Target size of an object.")
@dry_run
@option
@on_spark
def compact(topic: str, object_mib: int, dry_run: bool, job: SparkCommand) -> None:
    """Join small objects of a topic into large ones."""
    with job.spark() as spark:
        from penstock.spark.pipelines import compact_topic

        result = compact_topic(spark, topic, object_mib << 20, dry_run, **job.options)
    if job.as_json:
        print_json({**result._asdict(), "dry_run": dry_run})
        return
    verb = "would become" if dry_run else "are now"
    click.echo(
        f"{result.objects_before} objects {verb} {result.objects_after}, {result.rows} rows anew"
    )
    if result.refused:
        click.echo(f"{result.refused} were changed by others meanwhile: run it again")


@pipeline.command()
@click.argument("topic")
@click.argument("location", type=click.Path(path_type=Path))
@click.option("--format", "form", default="delta", type=click.Choice(["delta", "iceberg"]))
@click.option("--name", help="Name of an Iceberg table.  [default: penstock.TOPIC]")
@click.option(
    "--catalog", multiple=True, metavar="KEY=VALUE", help="Iceberg catalog setting; repeatable."
)
@dry_run
@option
@on_spark
def table(
    topic: str,
    location: Path,
    form: str,
    name: str | None,
    catalog: tuple[str, ...],
    dry_run: bool,
    job: SparkCommand,
) -> None:
    """Publish a topic as a table in LOCATION: adds new messages, each once."""
    with job.spark() as spark:
        from penstock.spark.pipelines import (
            DeltaTable,
            IcebergTable,
            PublishedTable,
            publish_topic,
        )

        directory = location.absolute()
        target: PublishedTable = (
            DeltaTable(directory, topic)
            if form == "delta"
            else IcebergTable(directory, name or f"penstock.{topic}", _pairs(catalog, "--catalog"))
        )
        files = directory if form == "delta" else directory / "files"
        result = publish_topic(spark, topic, target, files, dry_run, **job.options)
    if job.as_json:
        print_json({**result._asdict(), "dry_run": dry_run})
    else:
        verb = "would be added" if dry_run else "added"
        click.echo(f"{result.messages} messages {verb} to {location}")


@pipeline.command()
@click.argument("topic")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the tables and the page.  [default: report-TOPIC]",
)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    default=("1h",),
    show_default=True,
    metavar="TIME",
    help="Interval of the throughput table, such as 1m, 1h or 1d; repeatable.",
)
@click.option(
    "--format",
    "form",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "csv"]),
    help="Format of the tables.",
)
@option
@on_spark
def report(
    topic: str, into: Path | None, buckets: tuple[str, ...], form: str, job: SparkCommand
) -> None:
    """Report throughput, lag, deliveries and dead letters as tables and a page of plots."""
    directory = (into or Path(f"report-{topic.replace('/', '-')}")).absolute()
    with job.spark() as spark:
        from penstock.spark.pipelines import write_report

        result = write_report(spark, topic, directory, buckets, form, **job.options)
    for warning in result.warnings:
        click.echo(warning, err=True)
    if job.as_json:
        print_json({"page": str(result.page), "tables": result.tables})
    else:
        click.echo(f"{len(result.tables)} tables and {result.page}")


@pipeline.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--continuous", is_flag=True, help="Continue with new messages until interrupted.")
@on_spark
def run(file: Path, continuous: bool, job: SparkCommand) -> None:
    """Run a pipeline that is declared in FILE: sources, SQL, sinks."""
    with job.spark() as spark:
        from penstock.spark.pipelines import run_pipeline

        rows = run_pipeline(spark, file, continuous)
    if job.as_json:
        print_json({"rows": rows})
    else:
        click.echo(f"{rows} rows read")
