import pytest

from penstock.wire.jetstream import levels


def test_stored_metadata_has_the_owners_entries_and_the_required_level() -> None:
    told = {"b": "2", "_nats.ver": "1.0", "_nats.level": "9", "_nats.req.level": "7"}
    assert levels.stored(told, 1) == {"_nats.req.level": "1", "b": "2"}


def test_shown_metadata_adds_the_server_in_order() -> None:
    shown = levels.shown({"_nats.req.level": "0", "a": "b"})
    assert list(shown.items()) == [
        ("_nats.level", "5"),
        ("_nats.req.level", "0"),
        ("_nats.ver", "2.15.1"),
        ("a", "b"),
    ]


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("A: b", False),
        ("Nats-Required-Api-Level: 0", False),
        ("Nats-Required-Api-Level: 5", False),
        ("Nats-Required-Api-Level: 6", True),
        ("Nats-Required-Api-Level: 99999999999999999999", True),
        ("Nats-Required-Api-Level: x", True),
        ("Nats-Required-Api-Level:", True),
    ],
)
def test_a_level_above_ours_is_refused(line: str, refused: bool) -> None:
    assert levels.refuses(f"NATS/1.0\r\n{line}\r\n\r\n".encode()) is refused


def test_a_request_without_a_required_level_is_accepted() -> None:
    assert not levels.refuses(b"")
