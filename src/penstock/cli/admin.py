"""`penstock tenant`, `penstock namespace` and `penstock topic`: the admin API."""

from __future__ import annotations

import click

from penstock.cli import options
from penstock.cli.options import connect, topic_name
from penstock.cli.output import print_json, print_resources, print_table
from penstock.model import names

# -- tenants


@click.group()
def tenant() -> None:
    """Create, list and delete tenants."""


@tenant.command("create")
@click.argument("name")
@options.url
def create_tenant_command(name: str, url: str | None) -> None:
    """Create a tenant."""
    from penstock.client import create_tenant

    click.echo(f"created {connect(url).run(create_tenant(name)).name}")


@tenant.command("list")
@options.url
@options.as_json
def list_tenants_command(url: str | None, as_json: bool) -> None:
    """List all tenants."""
    from penstock.client import list_tenants

    print_resources(connect(url).run(list_tenants()), as_json)


@tenant.command("delete")
@click.argument("name")
@options.url
def delete_tenant_command(name: str, url: str | None) -> None:
    """Delete a tenant that has no namespaces."""
    from penstock.client import delete_tenant

    connect(url).run(delete_tenant(name))
    click.echo(f"deleted tenants/{name}")


# -- namespaces


@click.group()
def namespace() -> None:
    """Create, list and delete namespaces."""


@namespace.command("create")
@click.argument("name", metavar="TENANT/NAMESPACE")
@click.option("--store", default="", metavar="NAME", help="Object store, one of storage.stores.")
@options.url
def create_namespace_command(name: str, store: str, url: str | None) -> None:
    """Create a namespace."""
    from penstock.client import create_namespace

    conversation = create_namespace(names.namespace(name), store)
    click.echo(f"created {connect(url).run(conversation).name}")


@namespace.command("list")
@click.argument("tenant")
@options.url
@options.as_json
def list_namespaces_command(tenant: str, url: str | None, as_json: bool) -> None:
    """List the namespaces of a tenant."""
    from penstock.client import list_namespaces

    print_resources(connect(url).run(list_namespaces(tenant)), as_json)


@namespace.command("delete")
@click.argument("name", metavar="TENANT/NAMESPACE")
@options.url
def delete_namespace_command(name: str, url: str | None) -> None:
    """Delete a namespace that has no topics."""
    from penstock.client import delete_namespace

    namespace_ = names.namespace(name)
    connect(url).run(delete_namespace(namespace_))
    click.echo(f"deleted {namespace_.full}")


# -- topics


@click.group()
def topic() -> None:
    """Create, list, show and delete topics."""


@topic.command("create")
@click.argument("name")
@click.argument("fields", nargs=-1, metavar="[FIELD:TYPE ...]")
@click.option("--partition", metavar="FIELD", help="Partition column.")
@click.option(
    "--durability",
    type=click.Choice(["memory", "fsync", "cloud"]),
    default="fsync",
    show_default=True,
    help="What an acknowledgement promises.",
)
@click.option("--max-age", type=float, metavar="SECONDS", help="Delete messages older than this.")
@click.option(
    "--max-bytes", type=int, metavar="BYTES", help="Delete the oldest objects beyond this size."
)
@click.option("--max-messages", type=int, metavar="N", help="Messages to keep in each partition.")
@options.namespace
@options.url
@options.as_json
def create_topic_command(
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
    """Create a topic: typed by its fields, such as id:int64 name:string?, or raw without any."""
    from penstock.client import create_topic, topic_creation
    from penstock.model.retention import TopicRetention

    topic_ = topic_name(name, namespace)
    limits = TopicRetention(max_age, max_bytes, max_messages)
    body = topic_creation(topic_, fields or None, partition, durability, limits)
    created = connect(url).run(create_topic(topic_, body))
    if as_json:
        print_json(created)
    else:
        click.echo(f"created {created.name}")


@topic.command("list")
@options.namespace
@options.url
@options.as_json
def list_topics_command(namespace: str, url: str | None, as_json: bool) -> None:
    """List the topics of a namespace."""
    from penstock.client import list_topics

    print_resources(connect(url).run(list_topics(names.namespace(namespace))), as_json)


@topic.command("info")
@click.argument("name")
@options.namespace
@options.url
@options.as_json
def show_topic_command(name: str, namespace: str, url: str | None, as_json: bool) -> None:
    """Show the configuration, columns and partitions of a topic."""
    import msgspec

    from penstock.client import get_topic, list_partitions

    client, topic_ = connect(url), topic_name(name, namespace)
    info = client.run(get_topic(topic_))
    partitions = msgspec.to_builtins(client.run(list_partitions(topic_)))
    if as_json:
        print_json({**msgspec.to_builtins(info), "partitions": partitions})
        return
    click.echo(f"Topic: {info.name}")
    if info.fields is None:
        click.echo("Columns: none, messages are raw")
    else:
        columns = (f"{f.name}:{f.type}{'?' if f.nullable else ''}" for f in info.fields)
        click.echo(f"Columns: {' '.join(columns)}")
    click.echo(f"Partition column: {info.partition_column}")
    click.echo(f"Durability: {info.durability}")
    limits = msgspec.to_builtins(info.retention)
    shown = ", ".join(f"{key} {value}" for key, value in limits.items() if value is not None)
    click.echo(f"Retention: {shown or 'keeps everything'}")
    click.echo(f"Created: {info.created}\n")
    print_table([_partition_row(partition) for partition in partitions])


@topic.command("delete")
@click.argument("name")
@options.namespace
@options.url
def delete_topic_command(name: str, namespace: str, url: str | None) -> None:
    """Delete a topic and all its data, in the broker and in the bucket."""
    from penstock.client import delete_topic

    topic_ = topic_name(name, namespace)
    connect(url).run(delete_topic(topic_))
    click.echo(f"deleted {topic_.full}")


def _partition_row(partition: dict[str, object]) -> dict[str, object]:
    value = partition.pop("partition_value")
    if isinstance(value, dict):
        (value,) = value.values()
    return {"partition": "None" if value is None else value, **partition}
