import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from penstock.formats.objects import staged_prefix
from penstock.model import names
from tests.broker.http import TOPICS, HttpSite


async def _staged(server: HttpSite, topic: str, *payloads: bytes) -> dict[str, object]:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"payload": pa.array(payloads, pa.binary())}), sink)
    data = sink.getvalue().to_pybytes()
    key = f"{staged_prefix(names.topic(topic))}1.parquet"
    await server.served.broker.store.put(key, [data])
    rows = len(payloads)
    return {"key": key, "rows": rows, "size_bytes": len(data), "crc32c": crc32c(data)}


@pytest.mark.feature("S03")
async def test_a_link_is_answered_with_offsets_once_and_again(server: HttpSite) -> None:
    await server.topic("t")
    body = {"app": "a", "epoch": 3, "objects": [await _staged(server, "t", b"x", b"y")]}
    given = {"partition_id": 0, "partition_value": None, "start_offset": 0, "next_offset": 2}
    first = await server.ask("POST", f"{TOPICS}/t/links", body)
    assert first.plain == (200, {"ranges": [given], "repeated": False})
    again = await server.ask("POST", f"{TOPICS}/t/links", body)
    assert again.plain == (200, {"ranges": [given], "repeated": True})
    fetched = (await server.fetch({"topic": "t", "offset": 0})).body["topics"][0]["messages"]
    assert [message["payload"] for message in fetched] == ["x", "y"]
    assert {message["subject"] for message in fetched} == {"t"}


async def test_what_cannot_be_linked_is_refused_and_nothing_is_stored(
    server: HttpSite,
) -> None:
    await server.topic("t")
    item = await _staged(server, "t", b"x")
    bodies = [
        ({"app": "", "epoch": 0, "objects": []}, 400),
        ({"app": "a", "epoch": -1, "objects": []}, 400),
        ({"app": "a", "epoch": 0, "objects": [{**item, "rows": 5}]}, 400),
        ({"app": "a", "epoch": 0, "objects": [{**item, "partition_value": {"Int8": 1}}]}, 400),
        ({"app": "a", "epoch": 0, "objects": [{**item, "partition_value": 1}]}, 400),
    ]
    for body, status in bodies:
        assert (await server.ask("POST", f"{TOPICS}/t/links", body)).status == status, body
    unknown = {"app": "a", "epoch": 0, "objects": []}
    assert (await server.ask("POST", f"{TOPICS}/missing/links", unknown)).status == 404
    assert not server.served.topics.get(names.topic("t")).log.partitions()
