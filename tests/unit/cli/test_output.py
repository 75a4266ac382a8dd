"""Output for people and for programs."""

import pytest

from penstock.cli.output import last_segment, print_record, print_rows, table_lines


def test_a_record_is_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_record({"ID": "a", "Name": "b"}, as_json=False)
    print_record({"ID": "a"}, as_json=True)
    assert capsys.readouterr().out == 'ID    a\nName  b\n{"ID": "a"}\n'


def test_rows_are_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"id": "a"}], as_json=False)
    assert "| a  |" in capsys.readouterr().out
    print_rows([{"id": "a"}, {"id": "b"}], as_json=True)
    assert capsys.readouterr().out == '{"id": "a"}\n{"id": "b"}\n'


def test_the_last_segment_of_a_path_is_decoded() -> None:
    assert last_segment("/channel/c/message/a%20b") == "a b"


def test_columns_are_aligned_and_in_order_of_appearance() -> None:
    rows: list[dict[str, object]] = [
        {"id": 1, "name": "Ada"},
        {"id": 20, "name": None, "on": True},
        {"name": "東京"},
    ]
    assert "\n".join(table_lines(rows)) == (
        "+----+------+------+\n"
        "| id | name | on   |\n"
        "+----+------+------+\n"
        "| 1  | Ada  |      |\n"
        "| 20 |      | true |\n"
        "|    | 東京 |      |\n"
        "+----+------+------+"
    )


def test_a_table_without_rows_has_no_lines() -> None:
    assert list(table_lines([])) == []


def test_control_characters_are_escaped_and_structures_are_json() -> None:
    lines = list(table_lines([{"a": "x\ny\x1b", "b": [["k", "v"]]}]))
    assert lines[3] == '| x\\ny\\x1b | [["k", "v"]] |'
