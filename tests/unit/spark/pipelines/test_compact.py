"""Runs of adjacent objects are planned for compaction, as far as the owner accepts them."""

from __future__ import annotations

import pytest

from penstock.formats.plan_api import PlanObject
from penstock.spark.pipelines.compact import OBJECT_BYTES, OBJECTS_AT_ONCE, compactable_runs
from tests.unit.spark.plans import an_object, partition, plan


def runs(
    *objects: PlanObject, deleted: range = range(0), object_bytes: int = OBJECT_BYTES
) -> list[str]:
    """The keys of the objects of each run."""
    parts = [partition(0, next_=2000, deleted=deleted), partition(1, next_=2000)]
    found = compactable_runs(plan(parts, objects), object_bytes)
    return ["".join(item.key for item in run) for run in found]


@pytest.mark.feature("S05")
def test_adjacent_objects_are_compacted_up_to_a_size_and_a_number() -> None:
    objects = [an_object(key, (0, n, n + 1)) for n, key in enumerate("abcde")]
    assert runs(*objects) == ["abcde"]
    assert runs(*objects, object_bytes=250) == ["ab", "cd"]
    many = [an_object("x", (0, n, n + 1)) for n in range(OBJECTS_AT_ONCE + 2)]
    assert [len(run) for run in runs(*many)] == [OBJECTS_AT_ONCE, 2]


@pytest.mark.feature("S05")
def test_a_single_object_is_compacted_only_if_it_was_linked() -> None:
    assert runs(an_object("a", (0, 0, 10))) == []
    assert runs(an_object("a", (0, 0, 10), linked=True)) == ["a"]


@pytest.mark.feature("S05")
def test_objects_are_adjacent_if_all_messages_between_them_are_deleted() -> None:
    objects = an_object("a", (0, 0, 20)), an_object("b", (0, 30, 40))
    assert runs(*objects) == []
    assert runs(*objects, deleted=range(20, 29)) == []
    assert runs(*objects, deleted=range(20, 30)) == ["ab"]


@pytest.mark.feature("S05", "T26")
def test_no_run_spans_a_gap_that_a_returning_disk_may_fill() -> None:
    before = [an_object("a", (0, 0, 10)), an_object("b", (0, 10, 20))]
    after = [an_object("c", (0, 1000, 1010), after_gap=True), an_object("d", (0, 1010, 1020))]
    assert runs(*before, *after, deleted=range(20, 1000)) == ["ab", "cd"]
    new_partition = an_object("e", (1, 0, 5), after_gap=True)
    assert runs(*before, new_partition) == ["ab"]
