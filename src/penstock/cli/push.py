"""`penstock push`: messages from arguments, files or standard input.

A file is read by its ending: `.parquet`; `.arrow`, `.arrows`, `.feather`, `.ipc` (stream or file);
anything else, and standard input, has one JSON object a line, or with --text one payload a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from penstock.cli import broker

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.results import Pushed

ARROW_ENDINGS: Final = (".arrow", ".arrows", ".feather", ".ipc")
LINES_BYTES: Final = 1 << 20
"""About as much of a file of lines is read and pushed at a time."""

Input = Iterator[tuple[int, "list[bytes] | pa.Table"]]
"""Parts of the input, each with how many of the file's bytes it was."""


@click.command()
@click.argument("topic")
@click.argument("messages", nargs=-1)
@click.option("-f", "--file", "path", metavar="FILE", help="Push a file; - is standard input.")
@click.option("--text", is_flag=True, help="Messages and lines are payloads, not JSON objects.")
@click.option("--subject", metavar="SUBJECT", help="Subject of payloads.  [default: the topic]")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="KEY:VALUE", help="With payloads."
)
@broker.partition_value
@broker.namespace
@broker.url
@broker.as_json
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
    """Push messages and print the offsets they got.

    Rows of a typed topic are JSON objects. Messages of a raw topic given as arguments are payloads;
    in a file they are objects with payload or payload_b64, and subject and headers if wanted.
    """
    from penstock.client import calls
    from penstock.client.rows import table_of

    if messages and path is not None:
        raise click.UsageError("give messages or --file, not both")
    if not messages and path is None:
        path = "-"
    client, name = broker.connect(url), broker.topic_name(topic, namespace)
    found = client.run(calls.get_topic(name))
    schema = calls.schema_of(found)
    tagged = client.run(calls.tag_text(name, partition_value))
    payloads = schema is None and (text or path is None)
    if (subject is not None or headers) and not payloads:
        raise click.UsageError("--subject and --header go with payloads of a raw topic")
    extra = _extra(subject, headers)

    pushed: list[Pushed] = []
    before = 0
    encoded = [message.encode() for message in messages]
    parts: Input = iter([(0, encoded)]) if path is None else _parts(path)
    with _progress(path) as advance:
        try:
            for size, part in parts:
                rows: object = part
                if isinstance(part, list):
                    rows = _rows(part, before, payloads, schema is None, extra)
                    before += len(part)
                for piece in calls.pieces(table_of(rows, schema)):
                    pushed += client.run(calls.push_table(name, piece, tagged))
                advance(size)
        finally:
            _report(pushed, as_json)


def _extra(subject: str | None, headers: Iterable[str]) -> dict[str, object]:
    extra: dict[str, object] = {} if subject is None else {"subject": subject}
    pairs = [header.partition(":")[::2] for header in headers]
    if pairs:
        extra["headers"] = [(key.strip(), value.strip()) for key, value in pairs]
    return extra


def _rows(
    lines: list[bytes], before: int, payloads: bool, raw: bool, extra: dict[str, object]
) -> list[dict[str, object]]:
    if payloads:
        return [{"payload": line, **extra} for line in lines if line]
    import msgspec

    decoder = msgspec.json.Decoder(dict[str, object])
    rows = []
    for number, line in enumerate(lines, before + 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise click.ClickException(f"message {number} is not a JSON object: {error}") from None
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
    """What is wrong with a file, in one line."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise click.ClickException(f"cannot read {path}: {reason}") from None


@contextmanager
def _progress(path: str | None) -> Iterator[Callable[[int], None]]:
    """How far a file is, on a terminal."""
    if path in (None, "-") or not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("push", total=Path(str(path)).stat().st_size)
        yield lambda size: progress.advance(task, size)


def _report(pushed: list[Pushed], as_json: bool) -> None:
    """The offsets, neighbours joined."""
    from penstock.client.results import Pushed

    joined: list[Pushed] = []
    for part in pushed:
        last = joined[-1] if joined else None
        if last and last.end_offset + 1 == part.start_offset and last.partition == part.partition:
            joined[-1] = Pushed(last.start_offset, part.end_offset, part.partition)
        else:
            joined.append(part)
    for part in joined:
        if as_json:
            broker.tell(part._asdict())
        elif part.partition is None:
            click.echo(f"SUCCESS {part.start_offset} - {part.end_offset}")
        else:
            ((_, value),) = part.partition.items()
            click.echo(f"SUCCESS {part.start_offset} - {part.end_offset} partition {value}")
