"""`penstock tenant`: make, list and delete tenants."""

from __future__ import annotations

import click

from penstock.cli import broker


@click.group()
def tenant() -> None:
    """Make and look at tenants."""


@tenant.command()
@click.argument("name")
@broker.url
def create(name: str, url: str | None) -> None:
    """Make a tenant."""
    from penstock.client import calls

    click.echo(f"created {broker.connect(url).run(calls.create_tenant(name)).name}")


@tenant.command("list")
@broker.url
@broker.as_json
def list_(url: str | None, as_json: bool) -> None:
    """List tenants."""
    from penstock.client import calls

    for found in broker.connect(url).run(calls.list_tenants()):
        if as_json:
            broker.tell(found)
        else:
            click.echo(found.name.rpartition("/")[2])


@tenant.command()
@click.argument("name")
@broker.url
def delete(name: str, url: str | None) -> None:
    """Delete a tenant that has no namespace left."""
    from penstock.client import calls

    broker.connect(url).run(calls.delete_tenant(name))
    click.echo(f"deleted tenants/{name}")
