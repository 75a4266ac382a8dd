from penstock.wire.jetstream import levels


def test_what_is_kept_is_the_owners_and_the_level_needed() -> None:
    told = {"b": "2", "_nats.ver": "1.0", "_nats.level": "9", "_nats.req.level": "7"}
    assert levels.kept(told, 1) == {"_nats.req.level": "1", "b": "2"}


def test_what_is_shown_adds_who_answers_in_order() -> None:
    shown = levels.shown({"_nats.req.level": "0", "a": "b"})
    assert list(shown.items()) == [
        ("_nats.level", "5"),
        ("_nats.req.level", "0"),
        ("_nats.ver", "2.15.1"),
        ("a", "b"),
    ]
