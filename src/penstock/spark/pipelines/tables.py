"""Tables of an open format, committed by the driver: files first, then one commit that counts.

The table itself remembers up to which offsets it has a topic, in the same commit that adds the
rows, so a job that dies anywhere is simply run again: what was committed is not read again, what
was not is written once more under other names. Two jobs at a time: one commit wins, the other
raises.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.errors import SparkError, SparkUnavailable

OFFSETS: Final = "penstock.offsets"
"""Where an Iceberg snapshot tells the offsets, as JSON."""

_RETRIES: Final = "commit.retry.num-retries"
"""Pyiceberg adds files again on top of what somebody else has committed, unless this is 0."""

Offsets = dict[int, int]
"""By partition, the next offset."""


class TableChanged(SparkError):
    """Somebody else committed to the table meanwhile; nothing of ours was added."""

    def __init__(self, location: str, reason: object) -> None:
        super().__init__(f"table {location} was changed by somebody else: {reason}; run it again")


class Table(Protocol):
    """A table of one format."""

    def position(self) -> Offsets | None:
        """Up to where it has the topic; None when there is no table yet."""

    def create(self, columns: pa.Schema) -> None: ...

    def append(self, files: Sequence[Path], offsets: Offsets) -> None:
        """Add files and move the position, all or nothing; raises TableChanged."""

    def fitted(self, columns: pa.Schema) -> pa.Schema:
        """The columns in types that the format has."""


class DeltaTable:
    """A Delta table in a directory."""

    def __init__(self, location: Path, topic: str) -> None:
        self._location, self._topic = location, topic
        self._delta = _module("deltalake")
        self._table: Any = None

    def position(self) -> Offsets | None:
        if not self._delta.DeltaTable.is_deltatable(str(self._location)):
            return None
        self._table = self._delta.DeltaTable(str(self._location))
        found, number = {}, 0
        while (offset := self._table.transaction_version(self._app(number))) is not None:
            found[number] = offset
            number += 1
        return found

    def create(self, columns: pa.Schema) -> None:
        self._table = self._delta.DeltaTable.create(str(self._location), columns, mode="error")

    def append(self, files: Sequence[Path], offsets: Offsets) -> None:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        actions = [
            AddAction(
                path=str(file.relative_to(self._location)),
                size=file.stat().st_size,
                partition_values={},
                modification_time=time.time_ns() // 1_000_000,
                data_change=True,
                stats=msgspec.json.encode(_statistics(file)).decode(),
            )
            for file in files
        ]
        moved = [Transaction(self._app(number), next_) for number, next_ in offsets.items()]
        commit = CommitProperties(app_transactions=moved, max_commit_retries=0)
        schema = self._table.schema()
        try:
            self._table.create_write_transaction(
                actions, "append", schema, commit_properties=commit
            )
        except CommitFailedError as error:
            raise TableChanged(str(self._location), error) from error

    def fitted(self, columns: pa.Schema) -> pa.Schema:
        return columns

    def _app(self, partition: int) -> str:
        return f"penstock/{self._topic}/{partition}"


class IcebergTable:
    """An Iceberg table of a catalog; without settings, one in a file beside the tables."""

    def __init__(
        self, warehouse: Path, identifier: str, catalog: Mapping[str, str] | None = None
    ) -> None:
        _module("pyiceberg")
        from pyiceberg.catalog import load_catalog

        warehouse.mkdir(parents=True, exist_ok=True)
        default = {
            "type": "sql",
            "uri": f"sqlite:///{warehouse.absolute()}/catalog.db",
            "warehouse": f"file://{warehouse.absolute()}",
        }
        self._catalog = load_catalog("penstock", **{**default, **(catalog or {})})
        self._identifier = identifier
        self._table: Any = None

    def position(self) -> Offsets | None:
        if not self._catalog.table_exists(self._identifier):
            return None
        self._table = self._catalog.load_table(self._identifier)
        if self._table.properties.get(_RETRIES) != "0":
            with self._table.transaction() as change:
                change.set_properties({_RETRIES: "0"})
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            told = (snapshot.summary or {}).get(OFFSETS)
            if told is not None:
                return {int(number): next_ for number, next_ in json.loads(told).items()}
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return {}

    def create(self, columns: pa.Schema) -> None:
        self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        properties = {_RETRIES: "0"}
        self._table = self._catalog.create_table(self._identifier, columns, properties=properties)

    def append(self, files: Sequence[Path], offsets: Offsets) -> None:
        from pyiceberg.exceptions import CommitFailedException

        paths = [f"file://{file.absolute()}" for file in files]
        try:
            self._table.add_files(paths, snapshot_properties={OFFSETS: json.dumps(offsets)})
        except CommitFailedException as error:
            raise TableChanged(self._identifier, error) from error

    def fitted(self, columns: pa.Schema) -> pa.Schema:
        """Iceberg has no integers below 32 bits."""
        small = (pa.int8(), pa.int16())
        return pa.schema([f.with_type(pa.int32()) if f.type in small else f for f in columns])


def _statistics(file: Path) -> dict[str, object]:
    """What Delta wants to know of a file: its rows, and the offsets among them."""
    metadata = pq.read_metadata(file)
    told: dict[str, object] = {"numRecords": metadata.num_rows}
    place = metadata.schema.to_arrow_schema().get_field_index("offset")
    groups = [
        metadata.row_group(n).column(place).statistics for n in range(metadata.num_row_groups)
    ]
    if place >= 0 and groups and all(group is not None and group.has_min_max for group in groups):
        told["minValues"] = {"offset": min(group.min for group in groups)}
        told["maxValues"] = {"offset": max(group.max for group in groups)}
        told["nullCount"] = {"offset": 0}
    return told


def _module(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SparkUnavailable(
            f"{name} is not installed ({error}); run: pip install 'penstock[tables]'"
        ) from error
