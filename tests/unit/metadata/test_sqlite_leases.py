import pytest

from penstock.metadata.interface import LeaseExpired, LeaseId
from penstock.metadata.sqlite_leases import Leases
from penstock.model.units import Nanoseconds

ONE, TWO = LeaseId(1), LeaseId(2)


def seconds(count: float) -> Nanoseconds:
    return Nanoseconds(int(count * 1e9))


def test_a_lease_is_due_when_its_time_is_over_and_not_before() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(100))
    assert leases.due(seconds(109.999)) == []
    assert leases.due(seconds(110)) == [ONE]
    assert leases.due(seconds(110)) == []


def test_a_renewal_counts_from_when_it_is_made() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(0))
    assert leases.renew(ONE, seconds(9)) == 10.0
    assert leases.due(seconds(18.9)) == []
    assert leases.due(seconds(19)) == [ONE]


def test_no_lease_ends_before_the_earliest_end() -> None:
    leases = Leases()
    assert leases.earliest_ns() is None
    leases.grant(ONE, 10, seconds(0))
    leases.grant(TWO, 5, seconds(0))
    assert leases.earliest_ns() == seconds(5)
    leases.renew(TWO, seconds(4))
    assert leases.earliest_ns() == seconds(5)
    assert leases.due(seconds(5)) == []
    assert leases.earliest_ns() == seconds(9)


def test_a_dropped_lease_is_neither_due_nor_renewed() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(0))
    leases.drop(ONE)
    leases.drop(ONE)
    assert leases.due(seconds(11)) == []
    with pytest.raises(LeaseExpired):
        leases.renew(ONE, seconds(11))


def test_restored_leases_get_their_full_time_unless_they_are_known() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(0))
    leases.grant(LeaseId(3), 10, seconds(0))
    leases.restore([(ONE, 10), (TWO, 10)], seconds(6))
    assert leases.earliest_ns() == seconds(10)
    assert leases.due(seconds(10)) == [ONE]
    leases.drop(ONE)
    assert leases.due(seconds(16)) == [TWO]
