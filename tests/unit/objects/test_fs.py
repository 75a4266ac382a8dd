import errno
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from penstock.host.disk import Buffer, Disk
from penstock.objects import ObjectExists, ObjectMissing, ObjectStoreError, StoreUnavailable
from penstock.objects.fs import FileStore, unfinished, walk


class Recorder(Disk):
    """Records calls that matter for power cuts in order, and fails in the chosen one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.steps: list[str] = []
        self.fail = ""
        self.code = errno.EIO

    def write(self, fd: int, pieces: Sequence[Buffer]) -> None:
        self._step("write")
        super().write(fd, pieces)

    def sync(self, fd: int) -> None:
        self._step("sync")
        super().sync(fd)

    def link(self, path: Path, new: Path) -> None:
        self._step(f"link {new.relative_to(self._root)}")
        super().link(path, new)

    def make_directory(self, path: Path) -> None:
        self._step(f"make {path.relative_to(self._root)}")
        super().make_directory(path)

    def sync_directory(self, directory: Path) -> None:
        self._step(f"sync {directory.relative_to(self._root)}")
        super().sync_directory(directory)

    def remove(self, path: Path) -> None:
        self._step(f"remove {path.relative_to(self._root)}")
        super().remove(path)

    def taken(self) -> list[str]:
        steps, self.steps = self.steps, []
        return steps

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fail:
            raise OSError(self.code, os.strerror(self.code))


@pytest.fixture
def disk(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


@pytest_asyncio.fixture
async def store(tmp_path: Path, disk: Recorder) -> AsyncIterator[FileStore]:
    store = FileStore(tmp_path / "root", disk)
    yield store
    await store.close()


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def test_an_object_is_synced_before_it_is_linked_and_its_directory_after(
    store: FileStore, disk: Recorder
) -> None:
    await store.put("a/b/c", [b"x"])
    assert disk.taken() == [
        "make root",
        "sync .",
        "make root/a",
        "sync root",
        "make root/a/b",
        "sync root/a",
        "write",
        "sync",
        "link root/a/b/c",
        "sync root/a/b",
    ]
    await store.put("a/b/d", [b"y"])
    assert disk.taken() == ["write", "sync", "link root/a/b/d", "sync root/a/b"]


async def test_existing_directories_are_synced_too(
    store: FileStore, disk: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    await store.put("a/b", [b"x"])
    assert disk.taken() == [
        "make root",
        "sync .",
        "make root/a",
        "sync root",
        "write",
        "sync",
        "link root/a/b",
        "sync root/a",
    ]


async def test_an_equal_existing_object_is_made_durable(store: FileStore, disk: Recorder) -> None:
    await store.put("a", [b"x"])
    disk.taken()
    await store.put("a", [b"x"])
    assert disk.taken() == ["write", "sync", "link root/a", "sync", "sync root"]


@pytest.mark.parametrize("step", ["write", "sync", "link root/a/b", "sync root/a"])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, ObjectStoreError), (errno.ENOSPC, StoreUnavailable)]
)
async def test_a_write_that_fails_anywhere_leaves_nothing(
    store: FileStore,
    disk: Recorder,
    tmp_path: Path,
    step: str,
    code: int,
    kind: type[ObjectStoreError],
) -> None:
    disk.fail, disk.code = step, code
    with pytest.raises(ObjectStoreError) as error:
        await store.put("a/b", [b"x"])
    assert type(error.value) is kind
    assert error.value.reason == os.strerror(code).lower()
    assert files(tmp_path) == []
    disk.fail = ""
    await store.put("a/b", [b"x"])
    assert await store.get("a/b") == b"x"


async def test_a_directory_whose_sync_failed_is_synced_again(
    store: FileStore, disk: Recorder
) -> None:
    disk.fail = "sync root"
    with pytest.raises(ObjectStoreError):
        await store.put("a/b", [b"x"])
    disk.fail = ""
    disk.taken()
    await store.put("a/b", [b"x"])
    assert disk.taken()[:2] == ["make root/a", "sync root"]


async def test_a_delete_is_durable(store: FileStore, disk: Recorder) -> None:
    await store.put("a", [b"x"])
    disk.taken()
    await store.delete("a")
    assert disk.taken() == ["remove root/a", "sync root"]


async def test_unfinished_files_of_a_crash_are_not_listed_and_can_be_removed(
    store: FileStore, tmp_path: Path
) -> None:
    await store.put("a/b/1", [b"x"])
    root = tmp_path / "root"
    for place, name in (("a", "2"), ("a/b", "1"), ("a/b", "3")):
        (root / place / unfinished(name, "cafe")).write_bytes(b"half")
    assert [info.key async for info in store.list("")] == ["a/b/1"]
    assert await store.abort_uploads("a/b/1") == 1
    assert await store.abort_uploads("a/", before="a/2") == 0
    assert await store.abort_uploads("a/", before="a/3") == 1
    assert await store.abort_uploads("a/") == 1
    assert files(root) == ["a/b/1"]


async def test_an_object_with_the_name_of_a_directory_is_refused_and_the_other_way_round(
    store: FileStore,
) -> None:
    await store.put("a/b", [b"x"])
    with pytest.raises(ObjectStoreError, match="a part of it is the name of an object"):
        await store.put("a/b/c", [b"x"])
    with pytest.raises(ObjectExists):
        await store.put("a", [b"x"])
    with pytest.raises(ObjectMissing):
        await store.head("a")
    with pytest.raises(ObjectMissing):
        await store.get("a")
    with pytest.raises(ObjectMissing):
        await store.head("a/b/c")
    await store.delete("a/b/c")


async def test_a_removed_directory_is_created_again(store: FileStore, tmp_path: Path) -> None:
    await store.put("a/b", [b"x"])
    await store.delete("a/b")
    (tmp_path / "root" / "a").rmdir()
    await store.put("a/b", [b"y"])
    assert await store.get("a/b") == b"y"


async def test_a_file_that_gets_shorter_under_a_read_is_an_error(
    store: FileStore, disk: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a", [b"12345"])
    monkeypatch.setattr(disk, "read", lambda fd, size, position: b"123")
    with pytest.raises(ObjectStoreError, match="3 bytes where 5 were asked"):
        await store.get("a")


async def test_many_directories_are_forgotten_and_synced_once_more(
    store: FileStore, disk: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.objects.fs.SYNCED_DIRECTORIES_MAX", 2)
    for key in ("a/1", "b/1", "c/1", "a/2"):
        await store.put(key, [b""])
    assert disk.taken().count("sync root") >= 3


async def test_the_repr_of_a_store_shows_its_directory(store: FileStore, tmp_path: Path) -> None:
    assert repr(store) == f"FileStore('{tmp_path / 'root'}')"


async def test_a_root_is_made_with_everything_above_it(tmp_path: Path, disk: Recorder) -> None:
    store = FileStore(tmp_path / "x" / "y", disk)
    await store.put("a", [b"x"])
    await store.close()
    assert disk.taken() == [
        "make x/y",
        "make x",
        "sync .",
        "make x/y",
        "sync x",
        "write",
        "sync",
        "link x/y/a",
        "sync x/y",
    ]


async def test_an_object_deleted_while_it_is_listed_is_left_out(
    store: FileStore, disk: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in "abc":
        await store.put(key, [b""])
    file_size = disk.file_size

    def vanishing(path: Path) -> int:
        (tmp_path / "root" / "b").unlink(missing_ok=True)
        return file_size(path)

    monkeypatch.setattr(disk, "file_size", vanishing)
    assert [info.key async for info in store.list("")] == ["a", "c"]


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
    """Keys that are not a directory of other keys, as on a file system."""
    return sorted(key for key in keys if not any(k.startswith(f"{key}/") for k in keys))


@given(st.sets(KEYS), st.text("ab-./é", max_size=4), st.text("ab-./é", max_size=4))
async def test_a_walk_is_the_sorted_filter_of_all_keys(
    keys: set[str], prefix: str, after: str
) -> None:
    tree = Tree(_files(keys))
    found = [key async for key in walk(tree.entries, prefix, after)]
    assert found == [key for key in tree.keys if key.startswith(prefix) and key > after]


async def test_directories_outside_the_prefix_are_not_read() -> None:
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
