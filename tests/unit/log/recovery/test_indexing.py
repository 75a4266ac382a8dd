"""The subject index after a restart, and of topics that live in memory."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.formats.bodies import ObjectRef
from penstock.log import opening
from penstock.log.append import memory_writer
from penstock.log.logs import Logs, SharedLimits
from penstock.log.settings import LogSettings
from penstock.model import names
from penstock.model.resources import Durability
from penstock.model.run import Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId

P = PartitionId(0)
TOPIC = names.topic("t")
LIMITS = SharedLimits(reserve_bytes=4096, cache_bytes_max=40_000)


@pytest.mark.feature("T36")
async def test_after_a_restart_the_index_knows_sealed_and_active_files_and_links(
    tmp_path: Path,
) -> None:
    logs = Logs(tmp_path, LogSettings(), LIMITS)
    await logs.open()
    log = await logs.create(TOPIC)
    await log.append(Run([b"a", b"b"], [b"0", b"1"]))
    log.rotate()
    await log.append(Run([b"b", b"a"], [b"2", b"3"]))
    await log.link("app", 1, {P: [ObjectRef("staged", rows=2, size_bytes=1, crc32c=0)]})
    await logs.close()
    logs = Logs(tmp_path, LogSettings(), LIMITS)
    await logs.open()
    found = logs.get(TOPIC)
    assert found is not None
    everything = [
        await found.index.matching(P, Filter.parse(subject), Offset(0), 10)
        for subject in (b"a", b"b", b"t", b"*")
    ]
    await logs.close()
    assert everything == [[0, 3], [1, 2], [4, 5], [0, 1, 2, 3, 4, 5]]


@pytest.mark.feature("T36")
async def test_a_large_last_file_is_sealed_at_the_start_and_succeeded_by_a_new_one(
    tmp_path: Path,
) -> None:
    logs = Logs(tmp_path, LogSettings(), LIMITS)
    await logs.open()
    log = await logs.create(TOPIC)
    await log.append(Run([b"a", b"b"], [b"0", b"1"]))
    await logs.close()
    for life in range(1, 4):
        logs = Logs(tmp_path, LogSettings(seal_at_start_bytes=1), LIMITS)
        await logs.open()
        found = logs.get(TOPIC)
        assert found is not None
        assert found.status().files == life + 1
        await found.append(Run([b"a", b"b"], [b"0", b"1"]))
        everything = await found.index.matching(P, Filter.parse(b"a"), Offset(0), 10)
        assert everything == list(range(0, 2 * life + 2, 2))
        batches = await found.read(P, Offset(0))
        assert isinstance(batches, list)
        assert batches[0].first_offset == 0
        await logs.close()


async def test_a_seal_that_fails_at_the_start_leaves_the_file_and_begins_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(tmp_path, LogSettings(), LIMITS)
    await logs.open()
    await (await logs.create(TOPIC)).append(Run([b"a", b"b"], [b"0", b"1"]))
    await logs.close()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(opening, "seal", fail)
    logs = Logs(tmp_path, LogSettings(seal_at_start_bytes=1), LIMITS)
    await logs.open()
    found = logs.get(TOPIC)
    assert found is not None
    assert found.status().files == 2
    assert (await found.append(Run(b"a", [b"2"]))).first == 2
    assert await found.index.matching(P, Filter.parse(b"a"), Offset(0), 10) == [0, 2]
    await logs.close()


async def test_a_memory_topic_forgets_the_subjects_of_evicted_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_writer, "INDEX_BYTES_MAX", 1000)
    logs = Logs(tmp_path, LogSettings(), LIMITS)
    await logs.open()
    log = await logs.create(TOPIC, Durability.MEMORY)
    for number in range(200):
        await log.append(Run([b"s.%d" % number], [b"x" * 500]))
    before = log.index.nbytes
    log.tick(0)
    after, last = log.index.nbytes, await log.index.last(P, Filter.parse(b"s.199"))
    await logs.close()
    assert after < before
    assert last == 199
