"""Compares docs/formats.md with the records of consumers."""

from pathlib import Path

from penstock.delivery.consumers import ConsumerRecord

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


def test_the_page_lists_the_fields_of_a_record_in_order() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### Consumer\n")[1].split("\n#")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(ConsumerRecord.__struct_fields__)
