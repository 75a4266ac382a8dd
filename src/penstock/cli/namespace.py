"""`penstock namespace`: make, list and delete namespaces."""

from __future__ import annotations

import click

from penstock.cli import broker


@click.group()
def namespace() -> None:
    """Make and look at namespaces."""


@namespace.command()
@click.argument("name", metavar="TENANT/NAMESPACE")
@click.option("--store", default="", metavar="NAME", help="One of storage.stores for its objects.")
@broker.url
def create(name: str, store: str, url: str | None) -> None:
    """Make a namespace."""
    from penstock.client import calls

    asked = broker.namespace_name(name)
    click.echo(f"created {broker.connect(url).run(calls.create_namespace(asked, store)).name}")


@namespace.command("list")
@click.argument("tenant")
@broker.url
@broker.as_json
def list_(tenant: str, url: str | None, as_json: bool) -> None:
    """List the namespaces of a tenant."""
    from penstock.client import calls

    for found in broker.connect(url).run(calls.list_namespaces(tenant)):
        if as_json:
            broker.tell(found)
        else:
            click.echo(found.name.rpartition("/")[2])


@namespace.command()
@click.argument("name", metavar="TENANT/NAMESPACE")
@broker.url
def delete(name: str, url: str | None) -> None:
    """Delete a namespace that has no topic left."""
    from penstock.client import calls

    asked = broker.namespace_name(name)
    broker.connect(url).run(calls.delete_namespace(asked))
    click.echo(f"deleted {asked.full}")
