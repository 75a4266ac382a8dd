import pickle

import pytest

from penstock.model import errors
from penstock.model.errors import (
    AppendQueueFull,
    ConfigError,
    DataDamaged,
    DurabilityUnmet,
    FormatError,
    IndexUnavailable,
    LogClosed,
    LogError,
    LogReadOnly,
    NameInvalid,
    NotInLog,
    OffsetGone,
    Overloaded,
    PenstockError,
    ReadFailed,
    ResourceExists,
    ResourceUnknown,
    VersionUnknown,
)
from penstock.model.units import Offset, PartitionId

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, PenstockError)
]


def _drawn() -> list[tuple[str, str]]:
    """Every class with its parent in the tree of the module docstring."""
    pairs: list[tuple[str, str]] = []
    path: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").partition(" ")[0]
        if not name.isidentifier() or name == "Every":
            continue
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
        path[depth] = name
        if depth:
            pairs.append((name, path[depth - 1]))
    return pairs


def test_the_tree_in_the_module_docstring_is_the_class_hierarchy() -> None:
    parents = [(kind.__name__, kind.__mro__[1].__name__) for kind in ALL]
    assert sorted(_drawn()) == sorted(pair for pair in parents if pair[0] != "PenstockError")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_has_a_docstring(kind: type[PenstockError]) -> None:
    assert kind.__doc__


HERE = PartitionId(1)
SECOND, FIFTH = Offset(2), Offset(5)


@pytest.mark.parametrize(
    ("error", "sentence", "facts"),
    [
        (
            NameInvalid("topic", "a b", "short"),
            "topic name 'a b' is not valid: it must be short",
            {"kind": "topic", "name": "a b", "rule": "short"},
        ),
        (LogClosed("t"), "topic t: the log is closed", {"topic": "t"}),
        (
            LogReadOnly("t", "the disk is full"),
            "topic t: cannot be written now: the disk is full",
            {"topic": "t", "reason": "the disk is full"},
        ),
        (
            AppendQueueFull("t", 70, 64),
            "topic t: 70 bytes wait to be synced, the limit pending_bytes_max is 64; retry later",
            {"topic": "t", "pending_bytes": 70, "pending_bytes_max": 64},
        ),
        (
            DurabilityUnmet("t", "Input/output error"),
            "topic t: not stored: Input/output error",
            {"topic": "t", "reason": "Input/output error"},
        ),
        (
            OffsetGone("t", HERE, SECOND, FIFTH),
            "topic t: partition 1, offset 2 is gone; the earliest is 5",
            {"topic": "t", "partition": 1, "offset": 2, "earliest": 5},
        ),
        (
            OffsetGone("t", None, SECOND, FIFTH),
            "topic t: offset 2 is gone; the earliest is 5",
            {"topic": "t", "partition": None, "offset": 2, "earliest": 5},
        ),
        (
            ResourceUnknown("topic", "a/b/c"),
            "topic a/b/c does not exist",
            {
                "kind": "topic",
                "name": "a/b/c",
                "sentence": "does not exist",
                "code": "topic_not_found",
            },
        ),
        (
            ResourceExists("tenant", "a"),
            "tenant a exists already",
            {"kind": "tenant", "name": "a", "sentence": "exists already", "code": "tenant_exists"},
        ),
        (
            Overloaded("too many fetches at the same time", "fetch.max_running", 3),
            "too many fetches at the same time: fetch.max_running is 3; retry later",
            {"what": "too many fetches at the same time", "limit": "fetch.max_running", "most": 3},
        ),
        (
            NotInLog("t", HERE, SECOND, FIFTH),
            "topic t: partition 1, offsets 2 to 4 are in objects only",
            {"topic": "t", "partition": 1, "first": 2, "next": 5},
        ),
        (
            ReadFailed("t", HERE, SECOND, "Input/output error"),
            "topic t: partition 1, offset 2 cannot be read: Input/output error",
            {"topic": "t", "partition": 1, "offset": 2, "reason": "Input/output error"},
        ),
        (
            IndexUnavailable("wal/a/b/t", "the disk is full"),
            "the subject index in wal/a/b/t is not complete: the disk is full; retry later",
            {"directory": "wal/a/b/t", "reason": "the disk is full"},
        ),
        (
            DataDamaged("t", HERE, SECOND, FIFTH, "a bad sector"),
            "topic t: partition 1, offsets 2 to 4 are damaged: a bad sector",
            {"topic": "t", "partition": 1, "first": 2, "next": 5, "cause": "a bad sector"},
        ),
        (
            VersionUnknown("the file", 7, 1),
            "the file has format version 7, this Penstock reads up to 1: upgrade it",
            {"version": 7, "known": 1},
        ),
    ],
)
def test_an_error_has_its_facts_as_attributes_and_in_its_message(
    error: PenstockError, sentence: str, facts: dict[str, object]
) -> None:
    assert str(error) == sentence
    assert vars(error) == facts


@pytest.mark.parametrize("error", [ConfigError("a"), FormatError("b"), PenstockError("c")])
def test_an_error_without_facts_survives_a_pickle(error: PenstockError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_errors_of_a_log_can_be_caught_as_log_errors() -> None:
    assert issubclass(DurabilityUnmet, LogError)
    assert not issubclass(FormatError, LogError)
