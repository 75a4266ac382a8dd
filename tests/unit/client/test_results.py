import pyarrow as pa

from penstock.client.results import Fetched


def test_the_next_fetch_goes_on_behind_the_last_message() -> None:
    fetched = Fetched("t", 3, 5, pa.table({"offset": [3, 5]}))
    assert (len(fetched), fetched.next_offset) == (2, 6)


def test_an_empty_fetch_goes_on_where_it_was() -> None:
    fetched = Fetched("t", 3, 3, pa.table({"offset": pa.array([], pa.int64())}))
    assert (len(fetched), fetched.next_offset) == (0, 3)
