"""Records for people and for programs."""

import pytest

from penstock.cli.records import fields, name_of, tell_record, tell_rows


def test_a_record_is_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    tell_record({"ID": "a", "Name": "b"}, as_json=False)
    tell_record({"ID": "a"}, as_json=True)
    assert capsys.readouterr().out == 'ID    a\nName  b\n{"ID": "a"}\n'


def test_rows_are_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    tell_rows([{"id": "a"}], as_json=False)
    assert "| a  |" in capsys.readouterr().out
    tell_rows([{"id": "a"}, {"id": "b"}], as_json=True)
    assert capsys.readouterr().out == '{"id": "a"}\n{"id": "b"}\n'


def test_names_and_fields() -> None:
    assert name_of("/channel/c/message/a%20b") == "a b"
    assert fields(a="1", b=None) == {"a": "1"}
