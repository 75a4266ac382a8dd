"""`penstock manifest` and `penstock object`: work on the metadata and the bucket, without a broker.

Embedded metadata must not be in use by a broker. Exit code 0 if all is well, 1 if an object is
missing or damaged.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from penstock.cli import options
from penstock.config import Config, FlagSetting, load

if TYPE_CHECKING:
    from penstock.formats.objects import ObjectFacts
    from penstock.metadata import Metadata, MetadataKeys
    from penstock.objects import ObjectStore

_F = TypeVar("_F", bound=Callable[..., Any])


class OfflineStores(NamedTuple):
    """The metadata and the object store of a broker with this configuration."""

    metadata: Metadata
    keys: MetadataKeys
    objects: ObjectStore


def storage_options(command: _F) -> _F:
    """Add the options that select the stores."""
    for decorate in (options.overrides, options.data, options.config_file):
        command = decorate(command)
    return command


def read_config(config_file: Path | None, data: str | None, overrides: tuple[str, ...]) -> Config:
    flags = [] if data is None else [FlagSetting("--data", "data", data)]
    return load(config_file, os.environ, overrides, flags).config


def run_offline(config: Config, work: Callable[[OfflineStores], Awaitable[int]]) -> int:
    """Run `work` with the stores and return its exit code.

    Raises StartRefused if a broker uses the embedded metadata.
    """
    from penstock.assembly.directory import locked

    async def main() -> int:
        async with open_stores(config) as stores:
            return await work(stores)

    if config.storage.etcd.endpoints:
        return asyncio.run(main())
    with locked(config.data):
        return asyncio.run(main())


@asynccontextmanager
async def open_stores(config: Config) -> AsyncIterator[OfflineStores]:
    from penstock.assembly.storage import open_metadata, open_objects
    from penstock.metadata import MetadataKeys

    objects = open_objects(config)
    metadata = await open_metadata(config)
    try:
        yield OfflineStores(metadata, MetadataKeys(config.storage.etcd.namespace), objects)
    finally:
        await metadata.close()
        await objects.close()


# -- manifests


@click.group()
def manifest() -> None:
    """Show or rebuild a topic's manifest."""


@manifest.command()
@click.argument("topic")
@storage_options
def show(
    topic: str, config_file: Path | None, data: str | None, overrides: tuple[str, ...]
) -> None:
    """Print the manifest as JSON lines: the head, then one object a line."""
    from penstock.model import names
    from penstock.tiers import encode_record, load_manifest

    name = names.topic(topic)

    async def work(stores: OfflineStores) -> int:
        head, entries = await load_manifest(stores.metadata, stores.keys, name)
        if head is None:
            click.echo(f"error: topic {name} has no manifest", err=True)
            return 1
        click.echo(encode_record(head).decode())
        for entry in entries:
            click.echo(encode_record(entry).decode())
        return 0

    raise SystemExit(run_offline(read_config(config_file, data, overrides), work))


@manifest.command()
@click.argument("topic")
@storage_options
@click.option("--replace", is_flag=True, help="Replace an existing manifest.")
@click.option("--dry-run", is_flag=True, help="Show the result without storing it.")
def rebuild(
    topic: str,
    config_file: Path | None,
    data: str | None,
    overrides: tuple[str, ...],
    replace: bool,
    dry_run: bool,
) -> None:
    """Rebuild the manifest from the bucket: from its newest snapshot and later objects."""
    from penstock.model import names
    from penstock.tiers import install_manifest, rebuild_manifest

    name = names.topic(topic)

    async def work(stores: OfflineStores) -> int:
        rebuilt = await rebuild_manifest(stores.objects, name)
        summary = {
            "topic": str(name),
            "objects": len(rebuilt.entries),
            "rows": sum(entry.rows for entry in rebuilt.entries),
            "uploaded_frame": rebuilt.head.uploaded_frame,
            "next_offsets": {
                str(span.partition): span.next for entry in rebuilt.entries for span in entry.ranges
            },
        }
        if not dry_run:
            await install_manifest(
                stores.metadata, stores.keys, stores.objects, name, rebuilt, replace
            )
        click.echo(json.dumps(summary))
        return 0

    raise SystemExit(run_offline(read_config(config_file, data, overrides), work))


# -- objects


@click.group("object")
def object_() -> None:
    """List and check a topic's objects in the bucket."""


@object_.command("ls")
@click.argument("topic")
@storage_options
@options.as_json
def list_objects(
    topic: str,
    config_file: Path | None,
    data: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the objects of a topic, with and without a manifest entry."""
    from penstock.model import names
    from penstock.tiers import data_objects, load_manifest

    name = names.topic(topic)

    async def work(stores: OfflineStores) -> int:
        _, entries = await load_manifest(stores.metadata, stores.keys, name)
        named = {entry.object_id: entry for entry in entries}
        async for info in data_objects(stores.objects, name):
            entry = named.pop(info.key, None)
            state = "live" if entry else "unnamed"
            facts: dict[str, object] = {"key": info.key, "bytes": info.size_bytes, "state": state}
            if entry is not None:
                facts["rows"] = entry.rows
                facts["ranges"] = [[r.partition, r.first, r.next] for r in entry.ranges]
            click.echo(json.dumps(facts) if as_json else _object_line(facts))
        for key in named:
            facts = {"key": key, "bytes": 0, "state": "missing"}
            click.echo(json.dumps(facts) if as_json else _object_line(facts))
        return 1 if named else 0

    raise SystemExit(run_offline(read_config(config_file, data, overrides), work))


@object_.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--rows", default=10, show_default=True, help="Number of rows to show.")
def dump(path: Path, rows: int) -> None:
    """Print the metadata of an object file and its first rows."""
    import pyarrow.parquet as pq

    from penstock.formats.objects import facts_of

    file = pq.ParquetFile(path)
    click.echo(_facts_text(facts_of(file.metadata)))
    for name, kind in zip(file.schema_arrow.names, file.schema_arrow.types, strict=True):
        click.echo(f"  {name}: {kind}")
    for batch in file.iter_batches(batch_size=max(rows, 1)):
        for row in batch.slice(0, rows).to_pylist():
            click.echo(json.dumps(row, default=_value_text))
        break


@object_.command()
@click.argument("topic")
@storage_options
def verify(
    topic: str, config_file: Path | None, data: str | None, overrides: tuple[str, ...]
) -> None:
    """Read every object in the manifest and compare it with its entry."""
    from penstock.model import names
    from penstock.tiers import check_object, load_manifest

    name = names.topic(topic)

    async def work(stores: OfflineStores) -> int:
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

    raise SystemExit(run_offline(read_config(config_file, data, overrides), work))


def _object_line(facts: dict[str, object]) -> str:
    return f"{facts['state']:8} {facts['bytes']:>12} {facts.get('rows', '-'):>10}  {facts['key']}"


def _facts_text(facts: ObjectFacts) -> str:
    ranges = ", ".join(f"partition {r.partition}: {r.first} to {r.next - 1}" for r in facts.ranges)
    kind = "rows" if facts.typed else "messages"
    return (
        f"object version {facts.version} of topic {facts.topic}: {facts.rows} {kind}, {ranges}, "
        f"frames {facts.first_frame} to {facts.next_frame - 1}, epoch {facts.epoch}"
    )


def _value_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
