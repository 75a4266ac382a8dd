"""`penstock topic`: make, list, show and delete topics."""

from __future__ import annotations

import click

from penstock.cli import broker


@click.group()
def topic() -> None:
    """Make and look at topics."""


@topic.command()
@click.argument("name")
@click.argument("fields", nargs=-1, metavar="[FIELD:TYPE ...]")
@click.option("--partition", metavar="FIELD", help="Column that divides the topic.")
@click.option(
    "--durability",
    type=click.Choice(["memory", "fsync", "cloud"]),
    default="fsync",
    show_default=True,
    help="What an acknowledgement promises.",
)
@click.option("--max-age", type=float, metavar="SECONDS", help="Older messages go.")
@click.option("--max-bytes", type=int, metavar="BYTES", help="Beyond this the oldest objects go.")
@click.option("--max-messages", type=int, metavar="N", help="Kept of each partition.")
@broker.namespace
@broker.url
@broker.as_json
def create(
    name: str,
    fields: tuple[str, ...],
    partition: str | None,
    durability: str,
    max_age: float | None,
    max_bytes: int | None,
    max_messages: int | None,
    namespace: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Make a topic: typed by its fields, such as id:int64 name:string?, or raw without any."""
    from penstock.client import calls
    from penstock.formats.api import RetentionLimits

    topic_ = broker.topic_name(name, namespace)
    limits = RetentionLimits(max_age, max_bytes, max_messages)
    body = calls.creation(topic_, fields or None, partition, durability, limits)
    made = broker.connect(url).run(calls.create_topic(topic_, body))
    if as_json:
        broker.tell(made)
    else:
        click.echo(f"created {made.name}")


@topic.command("list")
@broker.namespace
@broker.url
@broker.as_json
def list_(namespace: str, url: str | None, as_json: bool) -> None:
    """List the topics of a namespace."""
    from penstock.client import calls

    for found in broker.connect(url).run(calls.list_topics(broker.namespace_name(namespace))):
        if as_json:
            broker.tell(found)
        else:
            click.echo(found.name.rpartition("/")[2])


@topic.command()
@click.argument("name")
@broker.namespace
@broker.url
@broker.as_json
def info(name: str, namespace: str, url: str | None, as_json: bool) -> None:
    """Show a topic: its columns, promises and partitions."""
    import msgspec

    from penstock.cli.table import render
    from penstock.client import calls

    client, topic_ = broker.connect(url), broker.topic_name(name, namespace)
    found = client.run(calls.get_topic(topic_))
    partitions = client.run(calls.list_partitions(topic_))
    if as_json:
        broker.tell({**msgspec.to_builtins(found), "partitions": msgspec.to_builtins(partitions)})
        return
    click.echo(f"Topic: {found.name}")
    if found.fields is None:
        click.echo("Columns: none, messages are raw")
    else:
        columns = (f"{f.name}:{f.type}{'?' if f.nullable else ''}" for f in found.fields)
        click.echo(f"Columns: {' '.join(columns)}")
    click.echo(f"Partition column: {found.partition_column}")
    click.echo(f"Durability: {found.durability}")
    limits = msgspec.to_builtins(found.retention)
    told = ", ".join(f"{key} {value}" for key, value in limits.items() if value is not None)
    click.echo(f"Retention: {told or 'keeps everything'}")
    click.echo(f"Created: {found.created}\n")
    for line in render([_state(msgspec.to_builtins(p)) for p in partitions]):
        click.echo(line)


@topic.command()
@click.argument("name")
@broker.namespace
@broker.url
def delete(name: str, namespace: str, url: str | None) -> None:
    """Delete a topic and all its data, here and in the bucket."""
    from penstock.client import calls

    topic_ = broker.topic_name(name, namespace)
    broker.connect(url).run(calls.delete_topic(topic_))
    click.echo(f"deleted {topic_.full}")


def _state(partition: dict[str, object]) -> dict[str, object]:
    value = partition.pop("partition_value")
    if isinstance(value, dict):
        (value,) = value.values()
    return {"partition": "None" if value is None else value, **partition}
