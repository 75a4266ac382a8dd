from penstock.model.durability import Durability


def test_the_levels_have_the_names_that_users_write() -> None:
    assert [level.value for level in Durability] == ["memory", "fsync", "cloud"]
