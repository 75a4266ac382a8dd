"""Compares docs/formats.md with the code, field by field."""

import re
import struct
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.formats import batches
from penstock.formats.bodies import DeleteBody, LinkBody, SealBody, StartBody
from penstock.formats.frames import (
    BODY_BYTES_MAX,
    FILE_HEADER,
    FILE_MAGIC,
    FILE_VERSION,
    FRAME_HEADER,
    Codec,
    FileHeader,
    Flag,
    FrameHeader,
    Kind,
    encode_frame,
)
from penstock.formats.scan import Verdict
from penstock.model.columns import Columns

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/formats.md has no heading {heading!r}"
    return match[1]


def tables(heading: str) -> list[list[dict[str, str]]]:
    """The tables of a section, each a list of rows by column."""
    found: list[list[dict[str, str]]] = []
    columns: list[str] = []
    for line in section(heading).splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
            found.append([])
        elif not set(line) <= set("|-: "):
            found[-1].append(dict(zip(columns, cells, strict=True)))
    assert found, f"docs/formats.md has no table under {heading!r}"
    return found


def layout(fields: tuple[str, ...], form: struct.Struct) -> list[tuple[int, int, str]]:
    """Offset, size and name of every field of a header, its checksum included."""
    codes = re.findall(r"\d*[a-zA-Z]", form.format.lstrip("<"))
    rows, offset = [], 0
    for name, code in zip(fields, codes, strict=True):
        size = struct.calcsize("<" + code)
        rows.append((offset, size, name))
        offset += size
    return [*rows, (offset, 4, "crc32c")]


@pytest.mark.feature("T02")
@pytest.mark.parametrize(
    ("heading", "fields", "form"),
    [
        ("File header", FileHeader._fields, FILE_HEADER),
        ("Frame header", FrameHeader._fields, FRAME_HEADER),
    ],
)
def test_a_header_is_on_the_page_as_it_is_in_the_code(
    heading: str, fields: tuple[str, ...], form: struct.Struct
) -> None:
    rows = tables(heading)[0]
    written = [(int(row["Offset"]), int(row["Size"]), row["Field"]) for row in rows]
    assert written == layout(fields, form)
    assert all(row["Meaning"] for row in rows)


@pytest.mark.feature("T02")
@pytest.mark.parametrize(
    "kind", [StartBody, SealBody, DeleteBody, LinkBody], ids=lambda kind: kind.__name__
)
def test_a_messagepack_body_is_on_the_page_as_it_is_in_the_code(
    kind: type[msgspec.Struct],
) -> None:
    rows = tables(kind.__name__.removesuffix("Body"))[0]
    assert [row["Field"] for row in rows] == list(kind.__struct_fields__)
    assert all(row["Meaning"] for row in rows)


def test_the_page_has_the_packed_columns_in_order() -> None:
    rows = [(row["Size"], row["Field"]) for row in tables("Packed body")[0]]
    assert rows == [
        ("8 n", "timestamps"),
        ("4 (s + 1)", "subject offsets"),
        ("4 (n + 1)", "header offsets"),
        ("4 (n + 1)", "payload offsets"),
        ("\u2013", "subjects"),
        ("\u2013", "headers"),
        ("\u2013", "payloads"),
    ]


def test_the_page_has_the_numbers_of_the_code() -> None:
    file_rows = {row["Field"]: row["Meaning"] for row in tables("File header")[0]}
    frame_rows = {row["Field"]: row["Meaning"] for row in tables("Frame header")[0]}
    assert file_rows["magic"] == f"`{FILE_MAGIC.hex(' ')}`"
    assert file_rows["version"] == str(FILE_VERSION)
    assert frame_rows["kind"] == ", ".join(f"{k.value} {k.name.lower()}" for k in Kind)
    assert frame_rows["codec"] == ", ".join(f"{c.value} {c.name.lower()}" for c in Codec)
    assert frame_rows["body_bytes"].endswith(f"at most {BODY_BYTES_MAX >> 20} MiB")
    flags = " ".join(section("Frame header").split())
    assert (
        f"Flags of a batch: {Flag.SAME_SUBJECT} one subject for all, {Flag.HEADERS} header column, "
        f"{Flag.TIMESTAMPS} timestamp column. Flags of a checkpoint: {Flag.START} start, "
        f"{Flag.SEAL} seal, {Flag.CLOSE} close."
    ) in flags


def test_the_page_names_every_kind_of_body_and_every_verdict() -> None:
    assert [row["Kind"] for row in tables("Frame header")[1]] == [k.name.lower() for k in Kind]
    verdicts = tables("What a scanner does with bad bytes")[0]
    named = {row["Verdict"].partition(":")[0] for row in verdicts}
    assert named == {verdict.value for verdict in Verdict}


def test_the_worked_example_is_a_valid_frame() -> None:
    block = re.search(r"```\n(.*?)```", section("A worked example"), re.DOTALL)
    assert block is not None
    shown = "".join(line.partition("  ")[0] for line in block[1].splitlines())
    codec, flags, body = batches.encode(Columns(b"a", pa.array([b"hi"], pa.binary())), None)
    when, size = 1_700_000_000_000_000, sum(map(len, body))
    header = FrameHeader(0x01020304, size, Kind.BATCH, codec, flags, 0, 7, 7, 0, 3, when, 1)
    assert bytes.fromhex(shown).hex() == b"".join(encode_frame(header, body)).hex()
