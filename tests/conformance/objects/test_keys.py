"""Unusual valid keys name distinct objects; invalid keys are refused before any call."""

import pytest

from penstock.objects import KeyInvalid, ObjectStore

ODD = [
    "a/with space",
    "a/+plus",
    "a/%2e%2e",
    "a/%percent",
    "a/é",
    "a/日本",
    "a/=&?#;:@!$'()*,",
    'a/"quoted"',
    "a/<tag>",
    "a/.hidden",
    "a/..twice",
    "a/~",
    "a/" + "n" * 220,
    "d/" * 40 + "deep",
]

INVALID = [
    "",
    "/absolute",
    "a/",
    "a//b",
    ".",
    "..",
    "../x",
    "a/../../x",
    "a/./b",
    "a/..",
    "a\x00b",
    "a/\n",
    "a\\b",
    " a",
    "a ",
    "a/b /c",
    "a/.penstock-x",
    "a/" + "n" * 221,
    "long/" * 200 + "x",
    "half\ud800",
    "a/e\u0301",
]


async def test_unusual_keys_stay_distinct_and_unchanged(store: ObjectStore) -> None:
    for key in ODD:
        await store.put(key, [key.encode()])
    assert [info.key async for info in store.list("")] == sorted(ODD)
    for key in ODD:
        assert await store.get(key) == key.encode()
        assert (await store.head(key)).size_bytes == len(key.encode())
        await store.delete(key)
    assert [info.key async for info in store.list("")] == []


@pytest.mark.parametrize("key", INVALID, ids=repr)
async def test_every_call_refuses_ambiguous_keys(store: ObjectStore, key: str) -> None:
    with pytest.raises(KeyInvalid):
        await store.put(key, [b"x"])
    with pytest.raises(KeyInvalid):
        await store.get(key)
    with pytest.raises(KeyInvalid):
        await store.head(key)
    with pytest.raises(KeyInvalid):
        await store.delete(key)


@pytest.mark.parametrize("prefix", ["/", "..//", "../", "a/../", "a//", "a\x00"], ids=repr)
async def test_no_listing_leaves_the_root(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(KeyInvalid):
        _ = [info async for info in store.list(prefix)]
    with pytest.raises(KeyInvalid):
        await store.abort_uploads(prefix)
