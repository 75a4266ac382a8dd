import pytest

from penstock.formats.objects import staged_prefix
from penstock.tiers.external import abandoned_objects
from penstock.tiers.external.compaction import CompactionStale, replace_by_compacted
from tests.broker.http import TOPICS, HttpSite
from tests.broker.storage import TOPIC, World, fill, flush
from tests.unit.tiers.external.test_compaction import made_of


def allow(server: HttpSite) -> None:
    async def compact(tier: object, keys: object, ref: object) -> None:
        await replace_by_compacted(tier, keys, ref, server.served.broker.threads)  # type: ignore[arg-type]

    object.__setattr__(server.backend, "compact", compact)


@pytest.mark.feature("S05")
async def test_a_compaction_is_answered_with_what_is_left(server: HttpSite, world: World) -> None:
    allow(server)
    assert TOPIC.topic == "t"
    topic = await server.topic("t")
    opened = server.served.topics.get(topic.name)
    assert opened.tier is not None
    for _ in range(3):
        await fill(opened.log, 10)
        await flush(opened.tier)
    entries = sorted(opened.tier.manifest.index, key=lambda entry: entry.sequence)
    ref = await made_of(world, entries[:2])
    body = {
        "replaces": [entry.object_id for entry in entries[:2]],
        "object": {"key": ref.key, "size_bytes": ref.size_bytes, "crc32c": ref.crc32c},
    }
    for _ in range(2):
        answer = await server.ask("POST", f"{TOPICS}/t/compactions", body)
        assert answer.plain == (200, {"objects": 2})
    other = {**body, "object": {**body["object"], "key": f"{ref.key}x"}}  # type: ignore[dict-item]
    stale = await server.ask("POST", f"{TOPICS}/t/compactions", other)
    assert (stale.status, "make a new plan" in stale.body["message"]) == (409, True)
    assert issubclass(CompactionStale, Exception)


@pytest.mark.feature("S05")
async def test_a_sweep_is_answered_with_how_many_it_removed(server: HttpSite, world: World) -> None:
    topic = await server.topic("t")
    assert (await server.ask("POST", f"{TOPICS}/t/sweeps", {})).status == 421
    object.__setattr__(server.backend, "sweep", abandoned_objects.delete_abandoned_objects)
    await world.bucket.put(f"{staged_prefix(topic.name)}{1:017d}-x.parquet", [b"x"])
    for swept in (1, 0):
        answer = await server.ask("POST", f"{TOPICS}/t/sweeps", {})
        assert answer.plain == (200, {"swept": swept})
    assert (await server.ask("POST", f"{TOPICS}/missing/sweeps", {})).status == 404
    assert (await server.ask("POST", f"{TOPICS}/t/sweeps", {"x": 1})).status == 400


async def test_what_cannot_be_compacted_is_told(server: HttpSite) -> None:
    await server.topic("t")
    body = {"replaces": ["x"], "object": {"key": "y", "size_bytes": 1, "crc32c": 0}}
    assert (await server.ask("POST", f"{TOPICS}/t/compactions", body)).status == 421
    allow(server)
    assert (await server.ask("POST", f"{TOPICS}/t/compactions", body)).status == 400
    empty = {**body, "replaces": []}
    assert (await server.ask("POST", f"{TOPICS}/t/compactions", empty)).status == 400
    assert (await server.ask("POST", f"{TOPICS}/missing/compactions", body)).status == 404
