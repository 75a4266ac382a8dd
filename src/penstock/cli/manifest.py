"""`penstock manifest`: look at a topic's manifest, or make it anew from the bucket."""

from __future__ import annotations

import json
from pathlib import Path

import click

from penstock.cli import offline
from penstock.cli.offline import Stores


@click.group()
def manifest() -> None:
    """Look at a topic's manifest, or make it anew."""


@manifest.command()
@click.argument("topic")
@offline.config_option
@offline.data_option
@offline.set_option
def show(
    topic: str, config_file: Path | None, data: str | None, overrides: tuple[str, ...]
) -> None:
    """Print the manifest as JSON: its head, then one object a line."""
    from penstock.model import names
    from penstock.tiers import entries as forms
    from penstock.tiers.inspect import load_manifest

    name = names.topic(topic)

    async def work(stores: Stores) -> int:
        head, entries = await load_manifest(stores.metadata, stores.keys, name)
        if head is None:
            click.echo(f"error: topic {name} has no manifest", err=True)
            return 1
        click.echo(forms.encode(head).decode())
        for entry in entries:
            click.echo(forms.encode(entry).decode())
        return 0

    raise SystemExit(offline.run(offline.read_config(config_file, data, overrides), work))


@manifest.command()
@click.argument("topic")
@offline.config_option
@offline.data_option
@offline.set_option
@click.option("--replace", is_flag=True, help="Replace a manifest that is there.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be found.")
def rebuild(
    topic: str,
    config_file: Path | None,
    data: str | None,
    overrides: tuple[str, ...],
    replace: bool,
    dry_run: bool,
) -> None:
    """Make the manifest anew from the bucket: newest snapshot and later objects."""
    from penstock.model import names
    from penstock.tiers import inspect

    name = names.topic(topic)

    async def work(stores: Stores) -> int:
        found = await inspect.rebuild(stores.objects, name)
        summary = {
            "topic": str(name),
            "objects": len(found.entries),
            "rows": sum(entry.rows for entry in found.entries),
            "uploaded_frame": found.head.uploaded_frame,
            "next_offsets": {
                str(span.partition): span.next for entry in found.entries for span in entry.ranges
            },
        }
        if not dry_run:
            await inspect.install(
                stores.metadata, stores.keys, stores.objects, name, found, replace
            )
        click.echo(json.dumps(summary))
        return 0

    raise SystemExit(offline.run(offline.read_config(config_file, data, overrides), work))
