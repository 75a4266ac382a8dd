from penstock.objects import ObjectInfo
from penstock.spark.pipelines.audit import bucket_findings, manifest_findings
from tests.unit.spark.plans import an_object, partition, plan

PREFIX = "topics/default/default/t/"


def told(*findings: tuple[str, str, str]) -> list[tuple[str, str]]:
    return [(kind, key) for kind, key, _ in findings]


def test_a_complete_manifest_has_no_findings() -> None:
    objects = [an_object("a", (0, 0, 10)), an_object("b", (0, 15, 20), (1, 0, 3))]
    made = plan([partition(0, 0, 20, 20, deleted=range(10, 15)), partition(1, 0, 3, 3)], objects)
    assert manifest_findings(made) == []


def test_overlaps_gaps_and_counts_are_found() -> None:
    objects = [
        an_object("a", (0, 0, 10)),
        an_object("twice", (0, 8, 20)),
        an_object("behind a gap", (0, 25, 30)),
        an_object("too few", (0, 30, 40), rows=8),
        an_object("too many", (0, 40, 50), rows=11),
    ]
    made = plan([partition(0, 0, 50, 50, deleted=[22, 35])], objects)
    found = manifest_findings(made)
    assert told(*found) == [
        ("count", "too few"),
        ("count", "too many"),
        ("duplicate", "twice"),
        ("gap", "behind a gap"),
    ]
    assert "offsets 8 to 9 are in another" in found[2].problem
    assert "offsets 20 to 24 are in no object" in found[3].problem


def test_offsets_below_the_start_are_ignored() -> None:
    objects = [an_object("a", (0, 5, 10), rows=5), an_object("b", (0, 10, 20))]
    assert manifest_findings(plan([partition(0, 8, 20, 20)], objects)) == []


def test_the_bucket_is_compared_with_the_manifest() -> None:
    data = f"{PREFIX}data-00000000000000001-p0-0"
    objects = [an_object(f"{data}-0-9-x", (0, 0, 10)), an_object(f"{data}-10-19-x", (0, 10, 20))]
    there = [
        ObjectInfo(f"{data}-0-9-x", 99, None),
        ObjectInfo(f"{data}-5-9-old", 1, None),
        ObjectInfo(f"{data}-20-29-newer", 1, None),
        ObjectInfo(f"{PREFIX}staged-1", 1, None),
        ObjectInfo(f"{PREFIX}manifest-1", 1, None),
    ]
    found = bucket_findings(plan([partition(next_=20)], objects), there, f"{PREFIX}staged-")
    assert told(*found) == [
        ("damaged", f"{data}-0-9-x"),
        ("missing", f"{data}-10-19-x"),
        ("stale", f"{data}-20-29-newer"),
        ("leftover", f"{data}-5-9-old"),
        ("leftover", f"{PREFIX}staged-1"),
    ]
    assert [finding.harmless for finding in found] == [False, False, False, True, True]
