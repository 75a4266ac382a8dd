"""`penstock object`: look at the objects of a topic in the bucket.

Works on the bucket and the metadata alone. Exit code 0 if all is well, 1 if something is damaged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import offline
from penstock.cli.offline import Stores

if TYPE_CHECKING:
    from penstock.formats.objects import ObjectFacts

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.group("object")
def object_() -> None:
    """Look at objects in the bucket."""


@object_.command("ls")
@click.argument("topic")
@offline.config_option
@offline.data_option
@offline.set_option
@json_option
def list_(
    topic: str,
    config_file: Path | None,
    data: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the objects of a topic: those the manifest names, and others."""
    from penstock.model import names
    from penstock.tiers.inspect import load_manifest, objects_of

    name = names.topic(topic)

    async def work(stores: Stores) -> int:
        _, entries = await load_manifest(stores.metadata, stores.keys, name)
        named = {entry.object_id: entry for entry in entries}
        async for info in objects_of(stores.objects, name):
            entry = named.pop(info.key, None)
            state = "live" if entry else "unnamed"
            facts: dict[str, object] = {"key": info.key, "bytes": info.size_bytes, "state": state}
            if entry is not None:
                facts["rows"] = entry.rows
                facts["ranges"] = [[r.partition, r.first, r.next] for r in entry.ranges]
            click.echo(json.dumps(facts) if as_json else _line(facts))
        for key in named:
            facts = {"key": key, "bytes": 0, "state": "missing"}
            click.echo(json.dumps(facts) if as_json else _line(facts))
        return 1 if named else 0

    raise SystemExit(offline.run(offline.read_config(config_file, data, overrides), work))


@object_.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--rows", default=10, show_default=True, help="How many rows to show.")
def dump(path: Path, rows: int) -> None:
    """Print what an object file says of itself, and its first rows."""
    import pyarrow.parquet as pq

    from penstock.formats.objects import facts_of

    file = pq.ParquetFile(path)
    facts = facts_of(file.metadata)
    click.echo(_facts_text(facts))
    for name, kind in zip(file.schema_arrow.names, file.schema_arrow.types, strict=True):
        click.echo(f"  {name}: {kind}")
    for batch in file.iter_batches(batch_size=max(rows, 1)):
        for row in batch.slice(0, rows).to_pylist():
            click.echo(json.dumps(row, default=_shown))
        break


@object_.command()
@click.argument("topic")
@offline.config_option
@offline.data_option
@offline.set_option
def verify(
    topic: str, config_file: Path | None, data: str | None, overrides: tuple[str, ...]
) -> None:
    """Read every object the manifest names and compare it with what it should be."""
    from penstock.model import names
    from penstock.tiers.inspect import check_object, load_manifest

    name = names.topic(topic)

    async def work(stores: Stores) -> int:
        _, entries = await load_manifest(stores.metadata, stores.keys, name)
        damaged = 0
        for entry in entries:
            report = await check_object(stores.objects, entry.object_id, entry)
            damaged += bool(report.problems)
            word = "DAMAGED" if report.problems else "intact"
            click.echo(f"{entry.object_id}: {word}, {entry.rows} rows, {entry.size} bytes")
            for problem in report.problems:
                click.echo(f"  {problem}")
        outcome = f"{damaged} damaged" if damaged else "intact"
        click.echo(f"{len(entries)} objects, {outcome}")
        return 1 if damaged else 0

    raise SystemExit(offline.run(offline.read_config(config_file, data, overrides), work))


def _line(facts: dict[str, object]) -> str:
    return f"{facts['state']:8} {facts['bytes']:>12} {facts.get('rows', '-'):>10}  {facts['key']}"


def _facts_text(facts: ObjectFacts) -> str:
    ranges = ", ".join(f"partition {r.partition}: {r.first} to {r.next - 1}" for r in facts.ranges)
    kind = "rows" if facts.typed else "messages"
    return (
        f"object version {facts.version} of topic {facts.topic}: {facts.rows} {kind}, {ranges}, "
        f"frames {facts.first_frame} to {facts.next_frame - 1}, epoch {facts.epoch}"
    )


def _shown(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
