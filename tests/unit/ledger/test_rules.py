from penstock.ledger.rules import Rules


def test_without_backoff_every_delivery_waits_as_long() -> None:
    assert [Rules(ack_wait_ns=7).wait_ns(count) for count in (0, 1, 2, 9)] == [7, 7, 7, 7]


def test_backoff_gives_each_delivery_its_wait_and_the_last_repeats() -> None:
    rules = Rules(backoff_ns=(2, 6))
    assert [rules.wait_ns(count) for count in (1, 2, 3, 4)] == [2, 6, 6, 6]
