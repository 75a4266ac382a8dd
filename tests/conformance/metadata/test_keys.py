"""Single keys and ranges, on every store."""

import pytest

from penstock.metadata import (
    RANGE_ENTRIES_MAX,
    REQUEST_BYTES_MAX,
    EntryPage,
    Metadata,
    MetadataEntry,
    MetadataRefused,
    Revision,
)

pytestmark = [pytest.mark.feature("T25"), pytest.mark.asyncio(loop_scope="session")]


async def test_a_key_that_was_never_put_is_not_there(store: Metadata, root: str) -> None:
    assert await store.get(f"{root}/a") is None
    assert not await store.delete(f"{root}/a")


async def test_a_key_tells_when_it_was_made_and_how_often_it_was_written(
    store: Metadata, root: str
) -> None:
    key = f"{root}/a"
    made = await store.put(key, b"1")
    other = await store.put(f"{root}/b", b"other")
    changed = await store.put(key, b"2")
    assert made < other < changed
    assert await store.get(key) == MetadataEntry(key, b"2", made, changed, 2, None)
    assert await store.get(f"{root}/b") == MetadataEntry(
        f"{root}/b", b"other", other, other, 1, None
    )


@pytest.mark.parametrize("count", [0, 1, 3, 300])
async def test_many_keys_are_read_in_the_requested_order(
    store: Metadata, root: str, count: int
) -> None:
    keys = [f"{root}/{number}" for number in range(count)]
    for key in keys[::2]:
        await store.put(key, key.encode())
    asked = [*reversed(keys), *keys[:2]]
    assert await store.get_many(asked) == [await store.get(key) for key in asked]


async def test_many_large_values_are_read_at_once(store: Metadata, root: str) -> None:
    keys = [f"{root}/{number}" for number in range(8)]
    for key in keys:
        await store.put(key, key.encode().ljust(REQUEST_BYTES_MAX - 100))
    entries = await store.get_many(keys)
    assert [entry.key for entry in entries if entry is not None] == keys


async def test_a_key_deleted_and_put_again_is_a_new_one(store: Metadata, root: str) -> None:
    key = f"{root}/a"
    await store.put(key, b"1")
    await store.put(key, b"2")
    assert await store.delete(key)
    assert await store.get(key) is None
    made = await store.put(key, b"3")
    assert await store.get(key) == MetadataEntry(key, b"3", made, made, 1, None)


async def test_deleting_nothing_is_no_change(store: Metadata, root: str) -> None:
    before = await store.put(f"{root}/a", b"")
    assert not await store.delete(f"{root}/b")
    assert (await store.range(root)).revision == before


async def test_an_empty_value_is_a_value(store: Metadata, root: str) -> None:
    made = await store.put(f"{root}/a", b"")
    assert await store.get(f"{root}/a") == MetadataEntry(f"{root}/a", b"", made, made, 1, None)


@pytest.mark.parametrize("size", [1, 70_000, REQUEST_BYTES_MAX - 100])
async def test_values_are_read_back(store: Metadata, root: str, size: int) -> None:
    value = bytes(range(256)) * (size // 256) + b"\xff" * (size % 256)
    await store.put(f"{root}/a", value)
    entry = await store.get(f"{root}/a")
    assert entry is not None
    assert entry.value == value


@pytest.mark.parametrize(
    "name",
    [
        "é",
        "日本",
        "\U0010ffff",
        "\0",
        "a\0b",
        "%",
        "_",
        "*",
        "'; DROP TABLE entries",
        " ",
        "\n",
        "\\",
    ],
)
async def test_odd_characters_are_characters(store: Metadata, root: str, name: str) -> None:
    key = f"{root}/{name}"
    await store.put(key, b"odd")
    await store.put(f"{root}/plain", b"plain")
    entry = await store.get(key)
    assert entry is not None
    assert (entry.key, entry.value) == (key, b"odd")
    assert [entry.key for entry in (await store.range(key)).entries] == [key]
    assert await store.delete(key)
    assert [entry.key for entry in (await store.range(root)).entries] == [f"{root}/plain"]


async def test_a_range_is_in_the_order_of_the_bytes_of_its_keys(store: Metadata, root: str) -> None:
    names = [
        "",
        "/",
        "/A",
        "/a",
        "/a\0",
        "/a/",
        "/b",
        "/\u007f",
        "/é",
        "/日",
        "/\uffff",
        "/\U00010000",
    ]
    for name in reversed(names):
        await store.put(root + name, name.encode())
    page = await store.range(root)
    assert [entry.value.decode() for entry in page.entries] == sorted(names, key=str.encode)
    assert not page.more


async def test_a_prefix_does_not_reach_its_neighbours(store: Metadata, root: str) -> None:
    for name in ("/a", "/a/1", "/a/2", "/a0", "/b"):
        await store.put(root + name, b"")
    assert await _names(store, root, "/a/") == ["/a/1", "/a/2"]
    assert await _names(store, root, "/a") == ["/a", "/a/1", "/a/2", "/a0"]
    assert await _names(store, root, "/c") == []


async def test_a_prefix_may_end_in_the_last_character_there_is(store: Metadata, root: str) -> None:
    for name in ("/\U0010ffff", "/\U0010ffff1", "/a"):
        await store.put(root + name, b"")
    assert await _names(store, root, "/\U0010ffff") == ["/\U0010ffff", "/\U0010ffff1"]


async def test_pages_follow_one_another_without_a_gap(store: Metadata, root: str) -> None:
    keys = [f"{root}/{number:03d}" for number in range(25)]
    revision = Revision(0)
    for key in keys:
        revision = await store.put(key, key.encode())
    seen: list[str] = []
    sizes = []
    page = await store.range(f"{root}/", limit=10)
    while True:
        assert page.revision == revision
        seen += [entry.key for entry in page.entries]
        sizes.append(len(page.entries))
        if not page.more:
            break
        page = await store.range(f"{root}/", after=seen[-1], limit=10)
    assert (seen, sizes) == (keys, [10, 10, 5])


async def test_a_page_that_ends_with_the_last_entry_says_there_is_no_more(
    store: Metadata, root: str
) -> None:
    for number in range(3):
        await store.put(f"{root}/{number}", b"")
    assert not (await store.range(f"{root}/", limit=3)).more
    assert (await store.range(f"{root}/", limit=2)).more


async def test_a_page_behind_something_outside_the_prefix_is_cut_to_the_prefix(
    store: Metadata, root: str
) -> None:
    revision = await store.put(f"{root}/b/1", b"")
    entries = (await store.range(f"{root}/b/")).entries
    assert await store.range(f"{root}/b/", after=f"{root}/a") == EntryPage(entries, revision, False)
    assert await store.range(f"{root}/b/", after=f"{root}/c") == EntryPage([], revision, False)
    assert await store.range(f"{root}/b/", after=f"{root}/b/1") == EntryPage([], revision, False)


async def test_the_empty_prefix_is_everything(store: Metadata, root: str) -> None:
    await store.put(f"{root}/a", b"")
    await store.put(f"{root}/b", b"")
    page = await store.range("", after=f"{root}/a", limit=1)
    assert [entry.key for entry in page.entries] == [f"{root}/b"]


@pytest.mark.parametrize("limit", [-1, 0, RANGE_ENTRIES_MAX + 1])
async def test_a_page_has_a_limit(store: Metadata, limit: int) -> None:
    with pytest.raises(MetadataRefused):
        await store.range("/", limit=limit)


async def test_a_key_is_text_and_not_empty(store: Metadata) -> None:
    for key in ("", "\ud800"):
        with pytest.raises(MetadataRefused):
            await store.get(key)
        with pytest.raises(MetadataRefused):
            await store.put(key, b"")
        with pytest.raises(MetadataRefused):
            await store.delete(key)


async def test_a_value_over_the_limit_is_refused_and_changes_nothing(
    store: Metadata, root: str
) -> None:
    with pytest.raises(MetadataRefused, match="request_bytes_max"):
        await store.put(f"{root}/a", bytes(REQUEST_BYTES_MAX))
    assert await store.get(f"{root}/a") is None


async def test_pages_of_large_values_are_complete(store: Metadata, root: str) -> None:
    value = bytes(1 << 20)
    for number in range(70):
        await store.put(f"{root}/{number:02d}", value)
    seen: list[str] = []
    more = True
    while more:
        page = await store.range(f"{root}/", after=seen[-1] if seen else "")
        seen += [entry.key for entry in page.entries]
        more = page.more
    assert seen == [f"{root}/{number:02d}" for number in range(70)]


async def _names(store: Metadata, root: str, prefix: str) -> list[str]:
    entries = (await store.range(root + prefix)).entries
    return [entry.key.removeprefix(root) for entry in entries]
