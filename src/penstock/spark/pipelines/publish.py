"""A topic published as a Delta or Iceberg table: new messages are added, each exactly once.

The driver commits: data files are written first, then one commit makes them visible. The table
itself records up to which offsets it has the topic, in the commit that adds the rows. A job that
dies is repeated: it does not read committed messages again, and writes others to new files. Of two
concurrent jobs one commits, and the other raises TableChanged.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.spark import columns, planning
from penstock.spark import options as options_
from penstock.spark.errors import DataUnread, SparkError, SparkUnavailable
from penstock.spark.sessions import broker_of
from penstock.spark.tables import topic as read_topic

OFFSETS: Final = "penstock.offsets"
"""Property of an Iceberg snapshot with the offsets, as JSON."""

_RETRIES: Final = "commit.retry.num-retries"
"""Property that must be 0, else pyiceberg repeats a commit after one of another writer."""

Offsets = dict[int, int]
"""The next offset of each partition."""


class TableChanged(SparkError):
    """Another writer committed to the table meanwhile; this job added nothing."""

    code = "table_changed"

    def __init__(self, location: str, reason: object) -> None:
        super().__init__(f"table {location} was changed by another writer: {reason}; run it again")


class PublishedTable(Protocol):
    """A table of an open format that a topic is published to."""

    def position(self) -> Offsets | None:
        """The offsets up to which the table has the topic; None if it does not exist."""

    def create(self, columns: pa.Schema) -> None: ...

    def append(self, files: Sequence[Path], offsets: Offsets) -> None:
        """Add files and advance the position in one commit; raises TableChanged."""

    def supported_schema(self, columns: pa.Schema) -> pa.Schema:
        """The columns, in types of the format."""


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

    def supported_schema(self, columns: pa.Schema) -> pa.Schema:
        return columns

    def _app(self, partition: int) -> str:
        return f"penstock/{self._topic}/{partition}"


class IcebergTable:
    """An Iceberg table; the default catalog is a file next to the tables."""

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
            offsets = (snapshot.summary or {}).get(OFFSETS)
            if offsets is not None:
                return {int(number): next_ for number, next_ in json.loads(offsets).items()}
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

    def supported_schema(self, columns: pa.Schema) -> pa.Schema:
        """Iceberg has no integers below 32 bits."""
        small = (pa.int8(), pa.int16())
        return pa.schema([f.with_type(pa.int32()) if f.type in small else f for f in columns])


def _statistics(file: Path) -> dict[str, object]:
    """Statistics of a file for Delta: its number of rows and range of offsets."""
    metadata = pq.read_metadata(file)
    statistics: dict[str, object] = {"numRecords": metadata.num_rows}
    column = metadata.schema.to_arrow_schema().get_field_index("offset")
    groups = [
        metadata.row_group(n).column(column).statistics for n in range(metadata.num_row_groups)
    ]
    if column >= 0 and groups and all(group is not None and group.has_min_max for group in groups):
        statistics["minValues"] = {"offset": min(group.min for group in groups)}
        statistics["maxValues"] = {"offset": max(group.max for group in groups)}
        statistics["nullCount"] = {"offset": 0}
    return statistics


def _module(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SparkUnavailable(
            f"{name} is not installed ({error}); run: pip install 'penstock[tables]'"
        ) from error


_RANGE_OPTIONS: Final = ("startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp")


class PublishResult(NamedTuple):
    """The result of a publication, or of its dry run."""

    messages: int
    files: int
    offsets: Offsets
    """The offsets up to which the table has the topic now."""


def publish_topic(
    spark: SparkSession,
    topic: str,
    table: PublishedTable,
    files: Path,
    dry_run: bool = False,
    **options: object,
) -> PublishResult:
    """Add the messages of a topic that the table does not have yet, and create it if necessary.

    `files` is a directory that Spark's workers, the driver and the table's readers share. Raises
    TableChanged and DataLost.
    """
    texts = {name: str(value) for name, value in options.items()}
    read = options_.read({"topic": topic, **texts}, broker_of(spark))
    plan = planning.make_plan(read, with_objects=False)
    position = table.position()
    starts = planning.starting_offsets(read, plan)
    if position:
        starts = {item.partition_id: item.start_offset for item in plan.partitions} | position
        known = {item.partition_id: item.next_offset for item in plan.partitions}
        if any(offset > known.get(number, -1) for number, offset in position.items()):
            raise DataUnread(
                f"topic {topic} was created again since it was published: use another table"
            )
    ends = {
        number: max(end, starts[number])
        for number, end in planning.ending_offsets(read, plan).items()
    }
    if all(starts[number] == end for number, end in ends.items()):
        return PublishResult(0, 0, ends)
    schema = table.supported_schema(columns.arrow_schema(plan.topic))
    frame = read_topic(spark, topic, **_with_range(texts, starts, ends))
    frame = frame.select(
        *(
            frame[field.name].cast(kind.dataType)
            for field, kind in zip(schema, columns.spark_schema(schema), strict=True)
        )
    ).toDF(*schema.names)
    if dry_run:
        return PublishResult(frame.count(), 0, starts)
    if position is None:
        table.create(schema)
    directory = files / f"part-{uuid.uuid4().hex}"
    frame.write.parquet(str(directory))
    written = sorted(directory.glob("*.parquet"))
    table.append(written, ends)
    return PublishResult(_rows(written), len(written), ends)


def _with_range(texts: dict[str, str], starts: Offsets, ends: Offsets) -> dict[str, str]:
    """The options with a range of offsets in place of their own."""
    others = {name: value for name, value in texts.items() if name.lower() not in _RANGE_OPTIONS}
    return {**others, "startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}


def _rows(files: list[Path]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files)
