from pathlib import Path

import msgspec
import pytest

from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.rules import AckPolicy, Rules
from penstock.ledger.settlement import Journal, SettledState, Settlement, decode, encode
from penstock.model.errors import FormatError, VersionUnknown


def restored(changes: list[Settlement | None]) -> SettledState:
    kept = SettledState()
    for change in changes:
        if change is not None:
            kept.apply(change)
    return kept


def delivered(count: int) -> tuple[ConsumerLedger, Journal]:
    ledger = ConsumerLedger(Rules(ack_wait_ns=10))
    ledger.record_delivery(range(1, count + 1), 0)
    return ledger, Journal(ledger, "c", 7)


def test_the_first_settlement_is_complete_and_without_changes_there_is_none() -> None:
    ledger, journal = delivered(3)
    ledger.ack([2])
    first = journal.take()
    assert first is not None
    assert first.whole
    assert restored([first]).pending == {1: 1, 3: 3}
    assert journal.take() is None


def test_later_settlements_hold_only_changes() -> None:
    ledger, journal = delivered(1000)
    first = journal.take()
    ledger.ack(list(range(1, 900)))
    ledger.record_delivery([1001, 1002], 0)
    ledger.ack([950])
    second = journal.take()
    assert second is not None
    assert not second.whole
    assert len(encode([second])) < 200
    kept = restored([first, second])
    assert kept.pending == {seq: seq for seq in [*range(900, 950), *range(951, 1003)]}
    assert (kept.floor_stream_seq, kept.stream_seq, kept.consumer_seq) == (899, 1002, 1002)


def test_numbers_of_deliveries_are_kept_and_forgotten() -> None:
    ledger, journal = delivered(3)
    changes = [journal.take()]
    ledger.nak(1, 0, 0)
    ledger.nak(2, 0, 0)
    ledger.record_redelivery([1, 2], 0)
    changes.append(journal.take())
    assert restored(changes).deliveries == {1: 2, 2: 2}
    ledger.ack([1])
    changes.append(journal.take())
    assert restored(changes).deliveries == {2: 2}


@pytest.mark.feature("P18")
def test_an_exhausted_message_stays_exhausted() -> None:
    ledger = ConsumerLedger(Rules(deliveries_max=1, ack_wait_ns=10))
    journal = Journal(ledger, "c", 7)
    ledger.record_delivery([1, 2], 0)
    changes = [journal.take()]
    ledger.ack([2])
    ledger.tick(10)
    changes.append(journal.take())
    again = ConsumerLedger(Rules(deliveries_max=1, ack_wait_ns=10))
    restored(changes).restore(again, 0)
    again.tick(100)
    assert (again.pending.queued, again.stream_seq) == (0, 2)


def test_after_a_failed_write_the_next_settlement_is_complete() -> None:
    _, journal = delivered(3)
    journal.take()
    journal.require_whole()
    change = journal.take()
    assert change is not None
    assert change.whole
    assert restored([change]).pending == {1: 1, 2: 2, 3: 3}


def test_a_consumer_without_acks_keeps_its_position() -> None:
    ledger = ConsumerLedger(Rules(ack_policy=AckPolicy.NONE), 5)
    journal = Journal(ledger, "c", 7)
    ledger.record_delivery([5, 6], 0)
    kept = restored([journal.take()])
    assert (kept.stream_seq, kept.floor_stream_seq, kept.pending) == (6, 6, {})


def test_a_later_version_is_refused_by_name_and_other_bytes_too() -> None:
    with pytest.raises(VersionUnknown, match="version 2"):
        decode(2, ["whatever"])
    with pytest.raises(FormatError, match="settle frame"):
        decode(1, ["whatever"])


def test_fields_at_the_end_that_this_version_does_not_know_are_ignored() -> None:
    _, journal = delivered(1)
    change = journal.take()
    assert change is not None
    kind, version, entry = msgspec.msgpack.decode(encode([change]))
    assert kind == "consumer"
    assert decode(version, [[*entry, "more"]]) == [change]


def test_the_page_of_formats_lists_the_fields_in_order() -> None:
    page = Path(__file__).parents[3].joinpath("docs/formats.md").read_text()
    section = page.split("### Settlement\n")[1].split("\n#")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(Settlement.__struct_fields__)
