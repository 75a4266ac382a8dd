"""`penstock pipeline`: jobs over whole topics, on Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from penstock.cli.broker import as_json, tell, url

master: Final = click.option(
    "--master",
    metavar="URL",
    help="Spark's master, such as spark://host:7077.  [default: local[*]]",
)
conf: Final = click.option(
    "--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
)
option: Final = click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of reading, such as startingOffsets=1000; repeatable.",
)
dry_run: Final = click.option("--dry-run", is_flag=True, help="Change nothing, tell what would be.")


@click.group()
def pipeline() -> None:
    """Run jobs over whole topics, on Spark."""


class Job(NamedTuple):
    """What every command here is told."""

    url: str | None
    master: str | None
    settings: dict[str, str]
    options: dict[str, Any]
    """Of reading."""
    as_json: bool

    def spark(self) -> AbstractContextManager[Any]:
        """Spark for the time of a command."""
        try:
            from penstock.spark.pipelines.progress import running
        except ImportError as error:
            raise click.ClickException(
                f"Spark is not installed ({error}); run: pip install 'penstock[spark]'"
            ) from error
        return running(
            self.url, self.master, self.settings, lambda line: click.echo(line, err=True)
        )


def on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options that all have here, which it gets as its `job`."""

    @wraps(command)
    def told(
        url: str | None,
        master: str | None,
        conf: tuple[str, ...],
        as_json: bool,
        options: tuple[str, ...] = (),
        **own: object,
    ) -> None:
        pairs = _pairs(conf, "--conf"), _pairs(options, "--option")
        command(job=Job(url, master, *pairs, as_json), **own)

    for decorate in (as_json, conf, master, url):
        told = decorate(told)
    return told


def _pairs(given: tuple[str, ...], name: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{name} {text!r} must be written KEY=VALUE")
        pairs[key] = value
    return pairs


@pipeline.command()
@click.argument("topic")
@option
@on_spark
def audit(topic: str, job: Job) -> None:
    """Check a topic: manifest, bucket, every byte of its objects, and its hot tail."""
    with job.spark() as spark:
        from penstock.spark.pipelines.audit import audit as run

        found = run(spark, topic, **job.options)
    if job.as_json:
        tell({"objects": found.objects, "rows": found.rows, "hot_messages": found.hot_messages})
    for finding in found.findings:
        if job.as_json:
            tell(finding._asdict())
        elif not finding.harmless:
            click.echo(f"{finding.kind}: {finding.object}: {finding.problem}")
    if not job.as_json:
        counted = f"{found.objects} objects, {found.rows} rows, {found.hot_messages} hot messages"
        leftovers = sum(finding.harmless for finding in found.findings)
        click.echo(f"{counted}, {leftovers} leftovers: {'sound' if found.sound else 'NOT SOUND'}")
    if not found.sound:
        raise SystemExit(1)


@pipeline.command()
@click.argument("source")
@click.argument("target")
@click.option("--where", metavar="CONDITION", help="Only messages for which this holds.")
@click.option("--sql", metavar="QUERY", help="A query over the view `source`.")
@click.option("--name", help="Names the replay: asked for again, it is not done again.")
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
    job: Job,
) -> None:
    """Copy messages of SOURCE into TARGET, all at once or not at all."""
    with job.spark() as spark:
        from penstock.spark.pipelines.replay import replay as run

        done = run(
            spark, source, target, where=where, sql=sql, name=name, dry_run=dry_run, **job.options
        )
    if job.as_json:
        tell({"messages": done.messages, "dry_run": dry_run})
    else:
        click.echo(f"{done.messages} messages {'would be copied' if dry_run else 'copied'}")


@pipeline.command()
@click.argument("topic")
@click.option("--key", metavar="COLUMN", help="Newest of each value of this.  [default: subject]")
@click.option("--into", metavar="PATH", help="Where the table goes; shown when left out.")
@click.option("--format", "form", default="parquet", show_default=True, help="Of the table.")
@option
@on_spark
def latest(topic: str, key: str | None, into: str | None, form: str, job: Job) -> None:
    """The newest message of every subject, as a table."""
    with job.spark() as spark:
        from penstock.spark.pipelines.latest import as_lines
        from penstock.spark.pipelines.latest import latest as newest
        from penstock.spark.tables import topic as read_topic

        frame = newest(read_topic(spark, topic, **job.options), key)
        if into is None:
            for line in as_lines(frame):
                click.echo(line)
            return
        frame.write.format(form).mode("overwrite").save(into)
        rows = spark.read.format(form).load(into).count()
    if job.as_json:
        tell({"rows": rows, "into": into})
    else:
        click.echo(f"{rows} rows in {into}")


@pipeline.command()
@click.argument("topic")
@click.option("--object-mib", default=128, show_default=True, help="About so large they become.")
@dry_run
@option
@on_spark
def compact(topic: str, object_mib: int, dry_run: bool, job: Job) -> None:
    """Join small objects of a topic into large ones."""
    with job.spark() as spark:
        from penstock.spark.pipelines.compact import compact as run

        done = run(spark, topic, object_mib << 20, dry_run, **job.options)
    if job.as_json:
        tell({**done._asdict(), "dry_run": dry_run})
        return
    verb = "would become" if dry_run else "are now"
    click.echo(f"{done.objects_before} objects {verb} {done.objects_after}, {done.rows} rows anew")
    if done.refused:
        click.echo(f"{done.refused} were changed by others meanwhile: run it again")


@pipeline.command()
@click.argument("topic")
@click.argument("location", type=click.Path(path_type=Path))
@click.option("--format", "form", default="delta", type=click.Choice(["delta", "iceberg"]))
@click.option("--name", help="Of an Iceberg table.  [default: penstock.TOPIC]")
@click.option("--catalog", multiple=True, metavar="KEY=VALUE", help="A setting of the catalog.")
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
    job: Job,
) -> None:
    """Publish a topic as a table in LOCATION: what is new is added, each message once."""
    with job.spark() as spark:
        from penstock.spark.pipelines.publish import publish
        from penstock.spark.pipelines.tables import DeltaTable, IcebergTable, Table

        place = location.absolute()
        target: Table = (
            DeltaTable(place, topic)
            if form == "delta"
            else IcebergTable(place, name or f"penstock.{topic}", _pairs(catalog, "--catalog"))
        )
        files = place if form == "delta" else place / "files"
        done = publish(spark, topic, target, files, dry_run, **job.options)
    if job.as_json:
        tell({**done._asdict(), "dry_run": dry_run})
    else:
        verb = "would be added" if dry_run else "added"
        click.echo(f"{done.messages} messages {verb} to {location}")


@pipeline.command()
@click.argument("topic")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of tables and page.  [default: report-TOPIC]",
)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    default=("1h",),
    show_default=True,
    metavar="TIME",
    help="Of the throughput, such as 1m, 1h or 1d; repeatable.",
)
@click.option(
    "--format",
    "form",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "csv"]),
    help="Of the tables.",
)
@option
@on_spark
def report(topic: str, into: Path | None, buckets: tuple[str, ...], form: str, job: Job) -> None:
    """Throughput, lag, deliveries and dead letters of a topic, as tables and a page of plots."""
    place = (into or Path(f"report-{topic.replace('/', '-')}")).absolute()
    with job.spark() as spark:
        from penstock.spark.pipelines.report import report as run

        done = run(spark, topic, place, buckets, form, **job.options)
    for warning in done.warnings:
        click.echo(warning, err=True)
    if job.as_json:
        tell({"page": str(done.page), "tables": done.tables})
    else:
        click.echo(f"{len(done.tables)} tables and {done.page}")


@pipeline.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--continuous", is_flag=True, help="Go on with what comes, until interrupted.")
@on_spark
def run(file: Path, continuous: bool, job: Job) -> None:
    """Run a pipeline that is declared in FILE: sources, SQL, sinks."""
    with job.spark() as spark:
        from penstock.spark.pipelines import declared

        rows = declared.run(spark, file, continuous)
    if job.as_json:
        tell({"rows": rows})
    else:
        click.echo(f"{rows} rows read")
