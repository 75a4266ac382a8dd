"""What a cycle does, drawn by chance from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Final

from tests.powercut.aim import Aim, Part
from tests.powercut.disks import (
    METADATA_STEPS,
    OBJECT_RECOVERY_STEPS,
    OBJECT_STEPS,
    RECOVERY_STEPS,
    STEPS,
)
from tests.powercut.orders import TierOrders, TopicOrders

LIFE_CYCLES: Final = (4, 16)
"""An image lives this many cycles, and then a new one takes its place."""

MOUNT_OPTIONS: Final = ("", "", "data=writeback", "data=journal", "nodelalloc", "noauto_da_alloc")

FILE_BYTES: Final = (8 << 10, 64 << 10, 256 << 10, 8 << 20)
FILE_BYTES_TIERED: Final = (8 << 10, 8 << 10, 64 << 10)
"""Small, so that there is always a file that may be pruned."""

_RARE: Final = {"create": 12, "sync_directory": 12, "remove": 3}
_RECOVERY_NTH_MAX: Final = 4
_LOAD_NTH_MAX: Final = 200
_TIER_NTH_MAX: Final = 60

_STEPS: Final = {
    Part.LOG: (STEPS, RECOVERY_STEPS),
    Part.OBJECTS: (OBJECT_STEPS, OBJECT_RECOVERY_STEPS),
    Part.METADATA: (METADATA_STEPS, METADATA_STEPS),
}
"""Of each part, under load and in recovery."""


class Ending(Enum):
    """How a cycle ends."""

    CUT = "cut"
    KILL = "kill"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Life:
    """What stays the same for as long as an image lives."""

    cycles: int
    topics: tuple[TopicOrders, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One cycle: recover, load, end."""

    ending: Ending
    aim: Aim | None
    in_recovery: bool
    load_seconds: float
    linger_seconds: float
    """How long the process lives on after the cut."""
    mount_options: str
    new_topics: int
    cut_at_new_topic: int | None
    load: dict[str, Any]
    """The size of everything else, as in the orders."""
    tiers: TierOrders | None

    @property
    def title(self) -> str:
        """What ends the cycle, for people."""
        where = " in recovery" if self.in_recovery else ""
        if self.cut_at_new_topic is not None:
            return f"{self.ending.value} after a topic was made"
        if self.aim is None:
            return f"{self.ending.value}{where}"
        return f"{self.ending.value}{where} {self.aim.step} ({self.aim.part.value})"


def draw_life(random: Random, tiers: bool = False) -> Life:
    cycles = random.randint(*LIFE_CYCLES)
    if tiers:
        return Life(cycles, tuple(_tiered_topics(random)))
    if random.random() < 0.25:
        topics = [
            TopicOrders(f"default/default/many-{n}", purged=n % 4 == 0, settled=n % 3 == 0)
            for n in range(40)
        ]
        return Life(cycles, tuple(topics))
    topics = [
        TopicOrders("default/default/plain"),
        TopicOrders("default/default/parted", partitions=4),
        TopicOrders("default/other/purged", purged=True, settled=False),
        TopicOrders("tenant/default/both", partitions=3, purged=True),
    ]
    return Life(cycles, tuple(topics[: random.randint(1, len(topics))]))


def _tiered_topics(random: Random) -> list[TopicOrders]:
    """Without settlements but for one, so that files are pruned."""
    some = [
        TopicOrders("default/default/parted", partitions=3, settled=False),
        TopicOrders("default/other/purged", partitions=2, purged=True, settled=False),
        TopicOrders("tenant/default/settled"),
    ]
    return [
        TopicOrders("default/default/plain", settled=False),
        TopicOrders("default/default/cloud", 2, purged=True, settled=False, cloud=True),
        *random.sample(some, random.randint(0, len(some))),
    ]


def draw(random: Random, only_new_topics: bool = False, tiers: bool = False) -> Plan:
    """Any cycle, or one that is cut as soon as a topic has been made."""
    ending = Ending.CUT if only_new_topics else random.choices(list(Ending), [80, 13, 7])[0]
    in_recovery = ending is not Ending.STOP and not only_new_topics and random.random() < 0.2
    at_new_topic = only_new_topics or (
        ending is Ending.CUT and not in_recovery and random.random() < 0.12
    )
    aimed = ending is not Ending.STOP and not at_new_topic and random.random() < 0.6
    return Plan(
        ending=ending,
        aim=_aim(random, in_recovery, ending is Ending.KILL, tiers) if aimed else None,
        in_recovery=in_recovery,
        load_seconds=random.uniform(0.0, 0.02) if in_recovery else random.uniform(0.1, 0.5),
        linger_seconds=random.choice([0.0, 0.02]),
        mount_options=random.choice(MOUNT_OPTIONS),
        new_topics=5 if at_new_topic else random.choice([0, 0, 2]),
        cut_at_new_topic=random.randrange(5) if at_new_topic else None,
        load={
            "index": random.random() < 0.3,
            "publishers": random.randint(0, 1) if at_new_topic else random.randint(8, 48),
            "messages_max": random.choice([1, 4, 20]),
            "payload_bytes_max": random.choice([200, 2_000, 20_000]),
            "file_bytes_max": random.choice(FILE_BYTES_TIERED if tiers else FILE_BYTES),
            "frame_bytes_max": random.choice([2 << 10, 4 << 20]),
            "sync_delay_seconds": random.choice([0.0, 0.0, 0.002]),
            "idle_seconds": random.choice([0.002, 0.05]),
            "cache_bytes_max": random.choice([4 << 10, 8 << 20]),
        },
        tiers=_tier_orders(random) if tiers else None,
    )


def _tier_orders(random: Random) -> TierOrders:
    return TierOrders(
        batch_bytes_max=random.choice([4 << 10, 32 << 10]),
        object_bytes_max=random.choice([32 << 10, 256 << 10]),
        trash_seconds=random.choice([0.0, 0.1, 3600.0]),
        wal_bytes_min=random.choice([0, 0, 32 << 10]),
        upkeep_seconds=random.choice([0.03, 0.1]),
    )


def _aim(random: Random, in_recovery: bool, kill: bool, tiers: bool) -> Aim:
    part = random.choice(list(Part)) if tiers else Part.LOG
    step = random.choice(_STEPS[part][in_recovery])
    often = _LOAD_NTH_MAX if part is Part.LOG else _TIER_NTH_MAX
    nth_max = _RECOVERY_NTH_MAX if in_recovery else _RARE.get(step.split()[1], often)
    return Aim(
        step,
        nth=random.randint(1, nth_max),
        delay_us=random.choice([0, random.randint(0, 300), random.randint(0, 3000)]),
        share=random.random(),
        kill=kill,
        part=part,
    )
