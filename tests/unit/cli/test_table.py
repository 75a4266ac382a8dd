from penstock.cli.table import render


def test_columns_are_aligned_and_in_order_of_appearance() -> None:
    rows: list[dict[str, object]] = [
        {"id": 1, "name": "Ada"},
        {"id": 20, "name": None, "on": True},
        {"name": "東京"},
    ]
    assert "\n".join(render(rows)) == (
        "+----+------+------+\n"
        "| id | name | on   |\n"
        "+----+------+------+\n"
        "| 1  | Ada  |      |\n"
        "| 20 |      | true |\n"
        "|    | 東京 |      |\n"
        "+----+------+------+"
    )


def test_no_row_is_no_table() -> None:
    assert list(render([])) == []


def test_control_characters_and_structures_stay_on_their_line() -> None:
    lines = list(render([{"a": "x\ny\x1b", "b": [["k", "v"]]}]))
    assert lines[3] == '| x\\ny\\x1b | [["k", "v"]] |'
