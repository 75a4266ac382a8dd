import pytest
from crc32c import crc32c

from penstock.objects.checksums import READ_BYTES, check_crc32c, pieces_crc32c, stored_crc32c
from penstock.objects.interface import ObjectDamaged, ObjectMissing
from penstock.objects.memory import MemoryStore


def test_how_bytes_are_cut_into_pieces_does_not_change_their_checksum() -> None:
    whole = b"123456789"
    assert pieces_crc32c([whole]) == 0xE3069283
    assert pieces_crc32c([whole[:4], b"", memoryview(whole)[4:]]) == 0xE3069283
    assert pieces_crc32c([]) == 0


@pytest.mark.parametrize("size", [0, 1, READ_BYTES, 2 * READ_BYTES + 5])
async def test_a_stored_object_has_the_checksum_of_what_was_put(size: int) -> None:
    store, body = MemoryStore(), bytes(size)
    await store.put("a", [body])
    assert await stored_crc32c(store, "a", size) == crc32c(body)


async def test_the_checksum_of_nothing_is_an_error() -> None:
    with pytest.raises(ObjectMissing):
        await stored_crc32c(MemoryStore(), "a", 1)


def test_data_passes_if_its_checksum_is_unknown_or_right() -> None:
    assert check_crc32c("a", b"123456789", None) == b"123456789"
    assert check_crc32c("a", b"123456789", 0xE3069283) == b"123456789"
    with pytest.raises(ObjectDamaged) as error:
        check_crc32c("a", b"123456788", 0xE3069283)
    assert error.value.crc32c == 0xE3069283
