"""`penstock push`: pushes messages from arguments, files or standard input.

The extension of a file decides on its format: `.parquet`; `.arrow`, `.arrows`, `.feather` or `.ipc`
(Arrow stream or file). Other files and standard input have one JSON object a line, or with --text
one payload a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from penstock.cli import options
from penstock.cli.options import connect, topic_name
from penstock.cli.output import print_json

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import PushedRange

ARROW_ENDINGS: Final = (".arrow", ".arrows", ".feather", ".ipc")
LINES_BYTES: Final = 1 << 20
"""Approximate size of the lines that are read and pushed at a time."""

Input = Iterator[tuple[int, "list[bytes] | pa.Table"]]
"""Parts of the input, each with its size in bytes of the file."""


@click.command()
@click.argument("topic")
@click.argument("messages", nargs=-1)
@click.option("-f", "--file", "path", metavar="FILE", help="Push a file; - is standard input.")
@click.option(
    "--text", is_flag=True, help="Treat messages and lines as payloads instead of JSON objects."
)
@click.option(
    "--subject", metavar="SUBJECT", help="Subject of payloads.  [default: the topic's id]"
)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="KEY:VALUE",
    help="Header of payloads; repeatable.",
)
@options.partition_value
@options.namespace
@options.url
@options.as_json
def push(
    topic: str,
    messages: tuple[str, ...],
    path: str | None,
    text: bool,
    subject: str | None,
    headers: tuple[str, ...],
    partition_value: str | None,
    namespace: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Push messages and print their offsets.

    Rows of a typed topic are JSON objects. Messages of a raw topic given as arguments are payloads;
    in a file they are objects with payload or payload_b64, and optionally subject and headers.
    """
    from penstock.client import (
        get_topic,
        parse_partition,
        push_table,
        table_of,
        table_parts,
        topic_schema,
    )

    if messages and path is not None:
        raise click.UsageError("use messages or --file, not both")
    if not messages and path is None:
        path = "-"
    client, name = connect(url), topic_name(topic, namespace)
    schema = topic_schema(client.run(get_topic(name)))
    tagged = client.run(parse_partition(name, partition_value))
    payloads = schema is None and (text or path is None)
    if (subject is not None or headers) and not payloads:
        raise click.UsageError("--subject and --header need payloads of a raw topic")
    extra = _extra(subject, headers)

    pushed: list[PushedRange] = []
    line_number = 0
    encoded = [message.encode() for message in messages]
    parts: Input = iter([(0, encoded)]) if path is None else _parts(path)
    with _progress(path) as advance:
        try:
            for size, part in parts:
                rows: object = part
                if isinstance(part, list):
                    rows = _rows(part, line_number, payloads, schema is None, extra)
                    line_number += len(part)
                for piece in table_parts(table_of(rows, schema)):
                    pushed += client.run(push_table(name, piece, tagged))
                advance(size)
        finally:
            _print_offsets(pushed, as_json)


def _extra(subject: str | None, headers: Iterable[str]) -> dict[str, object]:
    extra: dict[str, object] = {} if subject is None else {"subject": subject}
    pairs = [header.partition(":")[::2] for header in headers]
    if pairs:
        extra["headers"] = [(key.strip(), value.strip()) for key, value in pairs]
    return extra


def _rows(
    lines: list[bytes], line_number: int, payloads: bool, raw: bool, extra: dict[str, object]
) -> list[dict[str, object]]:
    if payloads:
        return [{"payload": line, **extra} for line in lines if line]
    import msgspec

    from penstock.formats.json_rows import repeated_key

    decoder = msgspec.json.Decoder(dict[str, object])
    rows = []
    for number, line in enumerate(lines, line_number + 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise click.ClickException(f"message {number} is not a JSON object: {error}") from None
        if line.count(b":") != len(row) and (repeated := repeated_key(b"[%b]" % line)):
            raise click.ClickException(f"message {number} has the key {repeated[1]!r} twice")
        rows.append(_raw(row) if raw else row)
    return rows


def _raw(row: dict[str, object]) -> dict[str, object]:
    import base64

    if isinstance(encoded := row.pop("payload_b64", None), str):
        row["payload"] = base64.b64decode(encoded)
    return row


def _parts(path: str) -> Input:
    if path == "-":
        yield from _lines(sys.stdin.buffer)
    elif Path(path).suffix == ".parquet":
        import pyarrow.parquet as pq

        with _readable(path):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).total_byte_size
                yield size, file.read_row_group(group)
    elif Path(path).suffix in ARROW_ENDINGS:
        with _readable(path):
            yield from _arrow(path)
    else:
        with _readable(path), Path(path).open("rb") as file:
            yield from _lines(file)


def _arrow(path: str) -> Input:
    import pyarrow as pa

    with pa.memory_map(path) as source:
        try:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            batches = iter(pa.ipc.open_stream(source))
        for batch in batches:
            yield batch.nbytes, pa.Table.from_batches([batch])


def _lines(file: BinaryIO) -> Input:
    while lines := file.readlines(LINES_BYTES):
        size = sum(map(len, lines))
        yield size, [line.rstrip(b"\r\n") for line in lines]


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Report errors of reading a file as one line."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise click.ClickException(f"cannot read {path}: {reason}") from None


@contextmanager
def _progress(path: str | None) -> Iterator[Callable[[int], None]]:
    """Show the progress of a file on a terminal; yields a function that advances it."""
    if path in (None, "-") or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("push", total=Path(str(path)).stat().st_size)
        yield lambda size: progress.advance(task, size)


def _print_offsets(pushed: list[PushedRange], as_json: bool) -> None:
    """Print ranges of offsets, adjacent ones merged."""
    from penstock.client import PushedRange

    joined: list[PushedRange] = []
    for part in pushed:
        last = joined[-1] if joined else None
        if last and last.end_offset + 1 == part.start_offset and last.partition == part.partition:
            joined[-1] = PushedRange(last.start_offset, part.end_offset, part.partition)
        else:
            joined.append(part)
    for part in joined:
        if as_json:
            print_json(part._asdict())
        elif part.partition is None:
            click.echo(f"SUCCESS {part.start_offset} - {part.end_offset}")
        else:
            ((_, value),) = part.partition.items()
            click.echo(f"SUCCESS {part.start_offset} - {part.end_offset} partition {value}")
