"""Objects larger than a part."""

import os

import pytest
from crc32c import crc32c

from penstock.objects import ObjectExists, ObjectStore, stored_crc32c

SIZE = 12 << 20
BODY = os.urandom(SIZE)


@pytest.mark.feature("T13")
async def test_a_large_object_is_read_whole_and_in_ranges(store: ObjectStore) -> None:
    view = memoryview(BODY)
    pieces = [view[:1000], view[1000 : 9 << 20], view[9 << 20 :]]
    assert (await store.put("large", pieces)).size_bytes == SIZE
    assert await store.get("large", crc32c=crc32c(BODY)) == BODY
    assert await store.get("large", 5 << 20, 6 << 20) == BODY[5 << 20 : 11 << 20]
    assert await stored_crc32c(store, "large", SIZE) == crc32c(BODY)


@pytest.mark.feature("T14")
async def test_a_large_object_can_be_written_again_but_not_changed(store: ObjectStore) -> None:
    first = await store.put("large", [BODY])
    assert await store.put("large", [BODY]) == first
    with pytest.raises(ObjectExists):
        await store.put("large", [BODY[:-1] + bytes([BODY[-1] ^ 1])])
    assert await store.get("large") == BODY
    assert await store.abort_uploads("") == 0
