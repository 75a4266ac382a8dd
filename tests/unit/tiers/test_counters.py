from contextlib import suppress

from penstock.tiers.counters import TierCounters


def test_uploads_and_transactions_add_up() -> None:
    counters = TierCounters()
    counters.uploaded(100, 7_000_000)
    counters.uploaded(20, 3_000_000)
    counters.committed(5_000_000)
    assert (counters.uploads, counters.upload_bytes) == (2, 120)
    assert (counters.upload_ms.count, counters.upload_ms.total) == (2, 10.0)
    assert (counters.transaction_ms.count, counters.transaction_ms.total) == (1, 5.0)


def test_an_upload_is_in_flight_until_it_succeeds_or_fails() -> None:
    counters = TierCounters()
    with counters.in_flight():
        with suppress(OSError), counters.in_flight():
            assert counters.uploads_in_flight == 2
            raise OSError
        assert counters.uploads_in_flight == 1
    assert counters.uploads_in_flight == 0
