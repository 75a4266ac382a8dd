from penstock.metadata.interface import HistoryCompacted, Revision


def test_a_watch_that_came_too_late_says_from_where_it_could_have_watched() -> None:
    error = HistoryCompacted(Revision(3), Revision(10))
    assert (error.asked, error.oldest) == (3, 10)
    assert str(error) == "changes since revision 3 are gone, the oldest kept is 10"
