from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.objects.fs_walk import unfinished, walk

NAMES = st.text("ab-./é", min_size=1, max_size=3).filter(
    lambda name: "/" not in name and name not in (".", "..")
)
KEYS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


class Tree:
    """Directories and files in memory."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.read: list[str] = []

    async def entries(self, directory: str) -> list[tuple[str, bool]]:
        self.read.append(directory)
        rests = [key.removeprefix(directory) for key in self.keys if key.startswith(directory)]
        return list({(rest.split("/")[0], "/" in rest) for rest in rests})


def _files(keys: set[str]) -> list[str]:
    """Those that are not also directories of others, as on a file system."""
    return sorted(key for key in keys if not any(k.startswith(f"{key}/") for k in keys))


@given(st.sets(KEYS), st.text("ab-./é", max_size=4), st.text("ab-./é", max_size=4))
async def test_a_walk_is_the_sorted_filter_of_all_keys(
    keys: set[str], prefix: str, after: str
) -> None:
    tree = Tree(_files(keys))
    found = [key async for key in walk(tree.entries, prefix, after)]
    assert found == [key for key in tree.keys if key.startswith(prefix) and key > after]


async def test_directories_that_cannot_hold_anything_wanted_are_not_read() -> None:
    tree = Tree(["a/1", "b/1", "b/2/x", "b/3/x", "c/1"])
    assert [key async for key in walk(tree.entries, "b/", "b/2/x")] == ["b/3/x"]
    assert tree.read == ["b/", "b/2/", "b/3/"]


@pytest.mark.parametrize(
    ("prefix", "expected"), [("", ["a/1", "b"]), ("a/", ["a/1"]), ("a/1", ["a/1"]), ("a/2", [])]
)
async def test_files_still_being_written_are_shown_only_on_demand(
    prefix: str, expected: list[str]
) -> None:
    names = {"a/1": f"a/{unfinished('1', 'u')}", "b": unfinished("b", "u")}
    tree = Tree(["a/2", *names.values()])
    assert [key async for key in walk(tree.entries, "")] == ["a/2"]
    found = [key async for key in walk(tree.entries, prefix, writing=True)]
    assert found == sorted(names[key] for key in expected)
