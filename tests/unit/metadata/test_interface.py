from penstock.metadata.interface import HistoryCompacted, Revision


def test_the_error_of_a_late_watch_names_the_oldest_revision() -> None:
    error = HistoryCompacted(Revision(3), Revision(10))
    assert (error.since, error.oldest) == (3, 10)
    assert str(error) == "changes since revision 3 are gone, the oldest kept is 10"
