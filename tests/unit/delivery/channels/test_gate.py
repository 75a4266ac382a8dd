"""What the topic of a channel takes."""

import pyarrow as pa
import pytest

from penstock.delivery.channels.gate import guard
from penstock.formats import header_block
from penstock.model.columns import Columns
from penstock.model.errors import RunInvalid, SignatureRequired
from penstock.model.run import ColumnRun, Origin, Run
from penstock.model.units import ONLY_PARTITION
from penstock.topics import linking
from tests.unit.tiers.core import World
from tests.unit.topics.served import serve

pytestmark = pytest.mark.feature("C23")
LONG = header_block.encode([("X-Broker-Message-ID", "m" * 256)])
GOOD = header_block.encode([("X-A", "1" * 256)])


def columns(*blocks: bytes | None) -> ColumnRun:
    payloads = pa.array([b"x"] * len(blocks), pa.binary())
    return ColumnRun(Columns(b"s", payloads, pa.array(blocks, pa.binary())))


async def test_no_run_over_a_limit_is_appended_in_whatever_form_it_comes(world: World) -> None:
    opened = await (await serve(world)).create()
    guard(opened, signed_only=False)
    for run in (Run(b"s", [b"x", b"y"], [GOOD, LONG]), columns(None, GOOD, LONG)):
        with pytest.raises(RunInvalid, match=r"is a channel: .* ID_CHARACTERS_MAX is 255"):
            opened.partition(run.partition).append(run)
    for run in (Run(b"s", [b"x"]), Run(b"s", [b"x"], [GOOD]), columns(None, GOOD)):
        await opened.partition(run.partition).append(run)
    assert opened.log.next_offset(run.partition) == 4


async def test_where_broadcasts_are_signed_only_the_broker_appends(world: World) -> None:
    opened = await (await serve(world)).create()
    guard(opened, signed_only=True)
    with pytest.raises(SignatureRequired, match="takes signed broadcasts only"):
        opened.partition(ONLY_PARTITION).append(Run(b"s", [b"x"]))
    with pytest.raises(SignatureRequired):
        await linking.link(opened, "app", 1, [])
    run = Run(b"s", [b"x"], [LONG])
    await opened.partition(ONLY_PARTITION).append(run, Origin.BROKER)


async def test_the_rules_of_the_topic_hold_behind_those_of_the_channel(world: World) -> None:
    opened = await (await serve(world)).create()
    asked: list[object] = []
    opened.add_admission(lambda run, origin: asked.append(run))
    guard(opened, signed_only=False)
    run = Run(b"s", [b"x"])
    await opened.partition(run.partition).append(run)
    assert asked == [run]
