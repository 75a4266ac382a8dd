"""Commands that channels and producers have alike: both are a name, a token and a title."""

from __future__ import annotations

import click

from penstock.cli import broker
from penstock.cli.records import fields, name_of, tell_record


def put_command(kind: str, told: str) -> click.Command:
    """`put NAME`: make one, or change what is given of it."""

    @click.command("put", help=told)
    @click.argument("name")
    @click.option("--token", metavar="TOKEN", help="Its token.  [default: a random one]")
    @click.option("--title", metavar="TEXT", help="Its name for people.  [default: NAME]")
    @broker.url
    @broker.as_json
    def put(
        name: str, token: str | None, title: str | None, url: str | None, as_json: bool
    ) -> None:
        from penstock.client import channel_calls

        given = fields(token=token, name=title)
        made = broker.connect(url).run(channel_calls.write((kind, name), given))
        tell_record(made, as_json)

    return put


def list_command(kinds: str) -> click.Command:
    """`list`: the names of all."""

    @click.command("list", help=f"List {kinds}, newest first.")
    @broker.url
    def list_(url: str | None) -> None:
        from penstock.client import channel_calls

        for found in broker.connect(url).run(channel_calls.listed(kinds)):
            click.echo(name_of(found))

    return list_
