"""`penstock wal`: dump and verify WAL files.

The commands read only the files, also while a broker has them open. Exit code 0 if the files are
intact, 1 if something is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.model.times import long_time_text_us

if TYPE_CHECKING:
    from penstock.formats.scan import Damage, IntactFrame
    from penstock.log import FileReport, Scanned

PAYLOAD_SHOWN_BYTES: Final = 80
_HEADINGS: Final = (
    f"{'position':>12} {'frame':>10} {'durable':>10}  {'kind':10} {'codec':6} "
    f"{'partition':>9} {'offsets':>23} {'bytes':>10}  time"
)

path_argument = click.argument("path", type=click.Path(exists=True, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")


@click.group()
def wal() -> None:
    """Dump and verify WAL files."""


@wal.command()
@path_argument
@click.option("--messages", is_flag=True, help="Also show the messages of every batch.")
@json_option
def dump(path: Path, messages: bool, as_json: bool) -> None:
    """Print every frame of a WAL file, or of all WAL files of a topic's directory."""
    from penstock.host.disk import Disk
    from penstock.log import scan_file, wal_files

    for file in wal_files(path):
        scanned = scan_file(Disk(), file, None, 0)
        for line in _as_json(scanned, messages) if as_json else _as_text(scanned, messages):
            click.echo(line)


@wal.command()
@path_argument
@json_option
@click.pass_context
def verify(context: click.Context, path: Path, as_json: bool) -> None:
    """Verify every byte of a WAL file, or of all WAL files of a topic's directory."""
    from penstock.host.disk import Disk
    from penstock.log import verify as verify_files

    damaged = files = 0
    for report in verify_files(Disk(), path):
        files += 1
        damaged += bool(report.problems)
        for line in _report_json(report) if as_json else _report_text(report):
            click.echo(line)
    if not as_json:
        noun = "file" if files == 1 else "files"
        click.echo(f"{files} {noun}, {damaged} damaged" if damaged else f"{files} {noun}, intact")
    context.exit(1 if damaged else 0)


def _as_text(scanned: Scanned, messages: bool) -> Iterator[str]:
    header = scanned.header
    yield (
        f"{scanned.path.name}: version {header.version}, sequence {header.sequence}, "
        f"mark {header.mark:#010x}, {len(scanned.data)} bytes"
        + ("" if scanned.header_intact else ", header DAMAGED")
    )
    yield _HEADINGS
    for item in _in_order(scanned):
        if isinstance(item, tuple):
            yield _frame_line(scanned, item)
            if messages:
                yield from _message_lines(scanned, item)
        else:
            size = item.end - item.position
            yield f"{item.position:>12} {size} bytes {item.verdict.value.upper()}"


def _in_order(scanned: Scanned) -> list[IntactFrame | Damage]:
    return sorted([*scanned.found, *scanned.damages], key=lambda item: item.position)


def _frame_line(scanned: Scanned, item: IntactFrame) -> str:
    facts = _facts(item)
    return (
        f"{facts['position']:>12} {facts['frame']:>10} {facts['durable']:>10}  {facts['kind']:10} "
        f"{facts['codec']:6} {facts['partition']:>9} {_offsets(scanned, item):>23} "
        f"{facts['bytes']:>10}  {facts['time'] or '-'}"
    )


def _offsets(scanned: Scanned, item: IntactFrame) -> str:
    from penstock.formats.frames import Kind

    header = item.header
    if header.kind == Kind.BATCH:
        return f"{header.first_offset}..{header.next_offset - 1}"
    if header.kind == Kind.LINK:
        return f"{header.entries} rows"
    if header.kind == Kind.SETTLE:
        return f"{header.entries} settled"
    return _deleted(scanned, item) if header.kind == Kind.DELETE else "-"


def _deleted(scanned: Scanned, item: IntactFrame) -> str:
    from pyroaring import BitMap64

    from penstock.formats import bodies

    delete = bodies.decode(bodies.DeleteBody, scanned.body(item))
    if delete.offsets:
        return f"{len(BitMap64.deserialize(delete.offsets))} gone: {delete.reason}"
    return f"start {delete.start}: {delete.reason}"


def _facts(item: IntactFrame) -> dict[str, object]:
    from penstock.formats.frames import Codec, Flag, Kind

    header = item.header
    kind = Kind(header.kind).name.lower()
    if header.kind == Kind.CHECKPOINT:
        names = {Flag.START: "start", Flag.SEAL: "seal", Flag.CLOSE: "close"}
        kind = names.get(header.flags, kind)
    stamp = header.first_timestamp
    return {
        "position": item.position,
        "frame": header.number,
        "durable": header.durable,
        "kind": kind,
        "codec": Codec(header.codec).name.lower(),
        "partition": header.partition,
        "first_offset": header.first_offset,
        "entries": header.entries,
        "bytes": header.frame_bytes,
        "time": long_time_text_us(stamp) if stamp else None,
    }


def _message_lines(scanned: Scanned, item: IntactFrame) -> Iterator[str]:
    for message in _messages(scanned, item):
        shown = str(message["payload"])
        cut = shown[:PAYLOAD_SHOWN_BYTES] + ("…" if len(shown) > PAYLOAD_SHOWN_BYTES else "")
        yield f"{'':12} {message['offset']:>10} {message['subject']}: {cut}"


def _messages(scanned: Scanned, item: IntactFrame) -> Iterator[dict[str, object]]:
    import pyarrow as pa

    from penstock.formats import batches
    from penstock.formats.frames import Kind

    if item.header.kind != Kind.BATCH:
        return
    rows = batches.decode(item.header, pa.py_buffer(scanned.data), item.position).to_arrow()
    for row in rows.to_pylist():
        if "payload" in rows.schema.names:
            yield {
                "offset": row["offset"],
                "subject": row["subject"].decode("utf-8", "backslashreplace"),
                "payload": row["payload"].decode("utf-8", "backslashreplace"),
            }
        else:
            lead = ("partition", "offset", "timestamp")
            typed = {key: value for key, value in row.items() if key not in lead}
            yield {"offset": row["offset"], "subject": "row", "payload": typed}


def _as_json(scanned: Scanned, messages: bool) -> Iterator[str]:
    for item in _in_order(scanned):
        if isinstance(item, tuple):
            facts = {"file": scanned.path.name, **_facts(item)}
            if messages:
                facts["messages"] = list(_messages(scanned, item))
        else:
            facts = {
                "file": scanned.path.name,
                "position": item.position,
                "end": item.end,
                "verdict": item.verdict.value,
            }
        yield json.dumps(facts, default=str)


def _report_text(report: FileReport) -> Iterator[str]:
    state = "sealed" if report.sealed else "open"
    word = "DAMAGED" if report.problems else "intact"
    yield f"{report.path.name}: {word}, {state}, {report.frames} frames, {report.messages} messages"
    for problem in report.problems:
        where = "" if problem.position is None else f"byte {problem.position}: "
        yield f"  {where}{problem.sentence}"


def _report_json(report: FileReport) -> Iterator[str]:
    yield json.dumps(
        {
            "file": report.path.name,
            "sealed": report.sealed,
            "frames": report.frames,
            "messages": report.messages,
            "problems": [
                {"position": problem.position, "problem": problem.sentence}
                for problem in report.problems
            ],
        }
    )
