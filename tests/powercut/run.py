"""The cycles: recover, check, load, end; again and again, on one image after another."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from tests.powercut.broker import Broker
from tests.powercut.facts import Cutting
from tests.powercut.history import History
from tests.powercut.image import Image, cut_power
from tests.powercut.orders import Bug, Orders, TierOrders
from tests.powercut.partition import Kind, Violation
from tests.powercut.plan import Ending, Life, Plan, draw, draw_life
from tests.powercut.watch import RECOVERY_SECONDS, Watch

CUT_SECONDS: Final = 10
KILLED: Final = "signal 9"
MAP_LOST: Final = "signal 7"
"""How SQLite's index in shared memory ends a process whose disk is gone."""


@dataclass(slots=True)
class Summary:
    """What a run did and found."""

    endings: Counter[Ending] = field(default_factory=Counter)
    cuts_in_recovery: int = 0
    images: int = 0
    recoveries: int = 0
    acks: int = 0
    records: int = 0
    deletions: int = 0
    recorded_holes: int = 0
    uploads: int = 0
    uploads_cut: int = 0
    merged: int = 0
    cold_records: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)

    @property
    def cuts(self) -> int:
        return self.endings[Ending.CUT]

    @property
    def _tiers(self) -> str:
        if not self.uploads:
            return ""
        return (
            f"{self.uploads:,} uploads and {self.uploads_cut} cut short, {self.merged} merged "
            f"objects, {self.cold_records:,} records that only objects had; "
        )

    def __str__(self) -> str:
        return (
            f"{self.cuts} power cuts ({self.cuts_in_recovery} of them in recovery), "
            f"{self.endings[Ending.KILL]} kills and {self.endings[Ending.STOP]} stops on "
            f"{self.images} images; {self.acks:,} acks and {self.deletions:,} deletions, "
            f"{self.records:,} records read in {self.recoveries} recoveries, "
            f"{self.recorded_holes} recorded holes; {self._tiers}{self.seconds:.0f} s, "
            f"{60 * self.cuts / max(self.seconds, 0.001):.0f} cuts a minute; "
            f"{len(self.violations)} violations"
        )


class Run:
    """Cuts on images below `directory`, up to the first violation; one line a cycle to `report`."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        disk: str,
        report: Callable[[str], None],
        keep: Path | None = None,
        only_new_topics: bool = False,
        tiers: bool = False,
        bug: Bug | None = None,
    ) -> None:
        self._image = Image(directory)
        self._random = Random(seed)
        self._disk = disk
        self._report = report
        self._keep = keep
        self._only_new_topics = only_new_topics
        self._tiers, self._bug = tiers, bug
        self._history = History()
        self._life = Life(0, ())
        self._cycle = 0
        self._standby = self._broker = Broker()
        self.summary = Summary()

    def cut(self, cuts: int) -> Summary:
        """Cycles until the power was cut so many times; every image ends with a last look."""
        begin = time.monotonic()
        try:
            while self.summary.cuts < cuts and not self.summary.violations:
                self._live(cuts)
        finally:
            self._broker.close()
            self._standby.close()
            self.summary.seconds = time.monotonic() - begin
        return self.summary

    def _live(self, cuts: int) -> None:
        """One image, from an empty file system to the last look."""
        self._image.make()
        self._image.mount()
        self._life, self._history = draw_life(self._random, self._tiers), History()
        try:
            for _ in range(self._life.cycles):
                self._run_cycle(draw(self._random, self._only_new_topics, self._tiers))
                if self.summary.cuts >= cuts or self.summary.violations:
                    break
            if not self.summary.violations:
                self._look()
        finally:
            self._broker.close()
            self._image.unmount()
            history, summary = self._history, self.summary
            summary.images += 1
            summary.acks += history.acks
            summary.records += history.records
            summary.deletions += history.deletions
            summary.recorded_holes += history.recorded_holes
            summary.uploads += history.uploads
            summary.uploads_cut += history.uploads_cut
            summary.merged += history.merged
            summary.cold_records += history.cold_records

    def _run_cycle(self, plan: Plan) -> None:
        acks = self._history.acks
        watch = self._begin(self._orders(plan))
        if plan.in_recovery:
            seconds = RECOVERY_SECONDS if plan.aim else plan.load_seconds
            watch.listen(seconds, lambda: watch.recovered)
        else:
            self._await_life(watch)
            if not self.summary.violations:
                watch.listen(plan.load_seconds)
        self._end(plan, watch)
        self.summary.recoveries += watch.recovered
        self.summary.endings[plan.ending] += 1
        self.summary.cuts_in_recovery += plan.in_recovery and plan.ending is Ending.CUT
        self._say(plan.title, self._history.acks - acks)

    def _look(self) -> None:
        """Nothing is proven by a cut until somebody has looked at what is left."""
        tiers = TierOrders(bug=self._bug) if self._tiers else None
        directory, topics = str(self._image.mounted), self._life.topics
        watch = self._begin(Orders(directory, 0, self._cycle, topics=topics, tiers=tiers))
        self._await_life(watch)
        if not self.summary.violations:
            self._end_in_order(watch)
        self._complain()
        self.summary.recoveries += watch.recovered
        self._say("last look", 0)

    def _begin(self, orders: Orders) -> Watch:
        self._broker, self._standby = self._standby, Broker()
        self._cycle += 1
        return Watch(self._broker, self._history, orders, self.summary.violations)

    def _await_life(self, watch: Watch) -> None:
        """Until it has recovered and writes again, unless the power is cut first."""
        watch.await_recovery()
        if not watch.recovered and not watch.cut:
            self._trouble(f"recovery did not end, the process did: {self._broker.status()}")
        if watch.recovered and not self.summary.violations:
            watch.await_writing()
            if not (watch.writing or watch.cut or self._broker.silent):
                self._trouble("what was recovered takes no messages")

    def _orders(self, plan: Plan) -> Orders:
        tiers = plan.tiers and msgspec.structs.replace(plan.tiers, bug=self._bug)
        return Orders(
            directory=str(self._image.mounted),
            seed=self._random.randrange(1 << 32),
            cycle=self._cycle,
            disk=self._disk,
            aim=plan.aim,
            aim_in_recovery=plan.in_recovery,
            topics=self._life.topics,
            new_topics=plan.new_topics,
            cut_at_new_topic=plan.cut_at_new_topic,
            tiers=tiers,
            **plan.load,
        )

    def _end(self, plan: Plan, watch: Watch) -> None:
        if self.summary.violations:
            pass
        elif plan.ending is Ending.STOP:
            self._end_in_order(watch)
        elif plan.ending is Ending.KILL:
            if self._broker.silent and self._broker.status() != KILLED:
                self._trouble(f"the process ended by itself: {self._broker.status()}")
            self._kill(watch)
        else:
            self._cut_power(plan, watch)
        self._complain()
        self._broker.close()

    def _end_in_order(self, watch: Watch) -> None:
        self._broker.stop()
        watch.drain()
        if self._broker.wait() != 0:
            self._trouble(f"an orderly stop was none: {self._broker.status()}")

    def _kill(self, watch: Watch) -> None:
        self._broker.kill()
        watch.drain()
        self._broker.wait()

    def _cut_power(self, plan: Plan, watch: Watch) -> None:
        if self._broker.silent and not plan.in_recovery:
            status = self._broker.status()
            if not (self._tiers and watch.cutting and status == MAP_LOST):
                self._trouble(f"the process ended by itself: {status}")
        if not watch.cut:
            self._broker.cut()
            watch.listen(CUT_SECONDS)
        if not watch.cut:
            self._history.tell(Cutting("from outside"))
            cut_power(self._image.mounted)
        time.sleep(plan.linger_seconds)
        self._kill(watch)
        self._image.unmount()
        self._image.mount(plan.mount_options)

    def _trouble(self, sentence: str) -> None:
        self.summary.violations.append(Violation(Kind.TROUBLE, sentence))

    def _complain(self) -> None:
        """If something is wrong: what the child said, and the files before others touch them."""
        if not self.summary.violations:
            return
        self._broker.kill()
        self._broker.wait()
        self._report(f"the process said:\n{self._broker.words()}")
        if self._keep is not None:
            shutil.copytree(self._image.mounted, self._keep, dirs_exist_ok=True)
            self._report(f"the files are in {self._keep}")

    def _say(self, title: str, acks: int) -> None:
        verdict = f"{len(self.summary.violations)} violations" if self.summary.violations else "ok"
        self._report(
            f"{self.summary.cuts:>6} cuts | {title:<38} | {acks:>7,} acks | "
            f"{self._history.messages:>8,} messages there | {verdict}"
        )
