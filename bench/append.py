"""Append 128-byte messages in runs of 1, 16, 256 and 4096.

*Durable*: a log on the real disk with many appends in flight, one publisher coroutine each. The
figures are wall time from the first append to the last acknowledgement, which follows fdatasync,
and processor time of the whole process with committer threads, event loop and publishers.
Concurrent runs share frames.

*On one core*: processor time of a run in a frame of its own without a disk: no write, no sync, no
thread. `append, frame, CRC` is Log.append and the end of the loop's turn: limits, offsets, future,
packing into Arrow columns, frame and its two CRCs. `committed, ack` is the work after the sync:
state, frame table, tail cache (full, so that each batch evicts one), subject index, waiting
readers, result of the future. It excludes the creation of the run and the checksum of the whole
file, which the committer's threads compute. `awaited` has a publisher that awaits each
append: the cost includes the creation of the run and four turns of the loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from bench.report import Report, Table, Target
from bench.workload import directory, median, on_loop, opened, runs, the_log
from penstock.log.append.commit import Commit
from penstock.log.append.writer import Writer
from penstock.log.log import Log
from penstock.log.logs import SharedLimits
from penstock.log.settings import LogSettings
from penstock.log.shared.committer import CommitJob, Committer
from penstock.model.run import Run

IN_FLIGHT: Final = {1: 1024, 16: 256, 256: 64, 4096: 16}
"""Concurrent appends in the durable measurement, by messages of a run."""
ROUNDS: Final = 5
_BLOCK_MESSAGES: Final = 1 << 16
_BLOCK_FRAMES_MAX: Final = 256
_NOT_WRITTEN: Final = LogSettings(file_bytes_max=1 << 40)
"""WAL file size that prevents rotation."""
_SMALL_CACHE: Final = SharedLimits(cache_bytes_max=8 << 20)


class Durable(NamedTuple):
    """Microseconds for a message."""

    wall: float
    cpu: float


class OneCore(NamedTuple):
    """Microseconds for a message; the first two figures are parts of `total`."""

    sealed: float
    committed: float
    total: float
    awaited: float


class InstantCommitter(Committer):
    """A disk without cost; a group waits in `job`, or completes in the next turn of the loop."""

    job: CommitJob

    def __init__(self) -> None:
        self.awaited = False

    def submit(self, job: CommitJob) -> None:
        assert isinstance(job, Commit)
        job.seal()
        self.job = job
        if self.awaited:
            asyncio.get_running_loop().call_soon(job.done, None)


def run(quick: bool) -> Report:
    messages = 100_000 if quick else 1_000_000
    durable = {size: on_loop(_durable(messages, size)) for size in IN_FLIGHT}
    cases = [(size, 1) for size in IN_FLIGHT] + [(256, 1000), (4096, 1000)]
    core = {case: on_loop(_one_core(messages // 5, *case)) for case in cases}
    return Report([_durable_table(durable), _core_table(core)], _targets(core))


def _durable_table(results: dict[int, Durable]) -> Table:
    return Table(
        "append, durable: 128-byte messages, one topic, fdatasync before the ack",
        ["messages in a run", "runs in flight", "msg/s", "us/msg", "cpu us/msg"],
        [[n, IN_FLIGHT[n], 1e6 / cost.wall, *cost] for n, cost in results.items()],
    )


def _core_table(results: dict[tuple[int, int], OneCore]) -> Table:
    columns = ["messages in a frame", "subjects", "msg/s", "append, frame, CRC us/msg"]
    return Table(
        "append, on one core: 128-byte messages, fsync and write excluded, processor time",
        [*columns, "committed, ack us/msg", "together us/msg", "awaited us/msg"],
        [[*case, 1e6 / cost.total, *cost] for case, cost in results.items()],
    )


def _targets(core: dict[tuple[int, int], OneCore]) -> list[Target]:
    many = [
        Target(
            f"append: 1 M messages/s in runs of {size}, fsync excluded, one core",
            f"{1 / core[size, 1].total:.2f} M/s",
            core[size, 1].total <= 1,
        )
        for size in (256, 4096)
    ]
    one = core[1, 1]
    told = f"{one.sealed:.1f} us; {one.total:.1f} with commit and ack"
    promise = "append: one message alone under 10 us through append, frame, CRC"
    return [*many, Target(promise, told, one.sealed < 10)]


async def _durable(messages: int, size: int) -> Durable:
    width = IN_FLIGHT[size]
    count = max(messages // ROUNDS // size // width, 4)
    costs = []
    with directory() as path:
        async with opened(path) as logs:
            log = await the_log(logs)
            for _ in range(ROUNDS):
                wall, cpu = time.perf_counter(), time.process_time()
                await asyncio.gather(*(_publish(log, count, size) for _ in range(width)))
                spent = time.perf_counter() - wall, time.process_time() - cpu
                costs.append(Durable(*(1e6 * part / (count * width * size) for part in spent)))
    return median(costs)


async def _publish(log: Log, count: int, size: int) -> None:
    """A publisher that sends each run after the acknowledgement of the last one."""
    for item in runs(count, size):
        await log.append(item)


async def _one_core(messages: int, size: int, subjects: int) -> OneCore:
    block = min(_BLOCK_MESSAGES // size, _BLOCK_FRAMES_MAX)
    rounds = max(messages // size // block, ROUNDS)
    committer = InstantCommitter()
    with directory() as path:
        async with opened(path, _NOT_WRITTEN, committer, _SMALL_CACHE) as logs:
            log = await the_log(logs)
            while logs.cache.size_bytes < 0.9 * _SMALL_CACHE.cache_bytes_max:
                await _by_hand(log, committer, list(runs(block, size, subjects)))
            parts = [
                await _by_hand(log, committer, list(runs(block, size, subjects)))
                for _ in range(rounds)
            ]
            committer.awaited = True
            cpu = time.process_time()
            for item in runs(rounds * block, size, subjects):
                await log.append(item)
            awaited = time.process_time() - cpu
    sealed, total = (1e6 * sum(part) / (rounds * block * size) for part in zip(*parts, strict=True))
    return OneCore(sealed, total - sealed, total, 1e6 * awaited / (rounds * block * size))


async def _by_hand(log: Log, committer: InstantCommitter, block: list[Run]) -> tuple[float, float]:
    """Processor seconds up to the sealed frames, and in total, without an event loop."""
    writer = log.writer
    assert isinstance(writer, Writer)
    clock, sealed = time.perf_counter_ns, 0
    wall, cpu = clock(), time.process_time()
    for item in block:
        begun = clock()
        log.append(item)
        writer._end_of_turn()
        sealed += clock() - begun
        committer.job.done(None)
    spent, share = time.process_time() - cpu, sealed / (clock() - wall)
    await asyncio.sleep(0)
    return spent * share, spent
