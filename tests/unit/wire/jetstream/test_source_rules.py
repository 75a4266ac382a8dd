"""The rules for sources of a stream."""

from typing import Any

import msgspec
import pytest

from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.source_rules import check_origins, check_sources
from penstock.wire.jetstream.stream_config import StreamConfig, normalised


def _config(name: str = "s", **fields: Any) -> StreamConfig:
    return normalised(msgspec.convert({"name": name, **fields}, StreamConfig))


def _transforms(*pairs: tuple[str, str]) -> dict[str, Any]:
    transforms = [{"src": src, "dest": dest} for src, dest in pairs]
    return {"sources": [{"name": "o", "subject_transforms": transforms}]}


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (10140, {"sources": [{"name": "o"}, {"name": "o", "opt_start_seq": 3}]}),
        (10141, {"sources": [{"name": "a.b"}]}),
        (10144, {"sources": [{"name": "o", "filter_subject": "a", "subject_transforms": [{}]}]}),
        (10145, _transforms(("a..b", "c"))),
        (10146, _transforms(("a.*", "b.{{wildcard(2)}}"))),
        (10146, _transforms(("a.*", "b.*"))),
        (10146, _transforms(("a.>", "b"))),
        (10146, _transforms(("a.*", "b c"))),
        (10147, _transforms(("a.*", ""), ("a.b", ""))),
        (10049, {"sources": [{"name": "o", "filter_subject": "a..b"}]}),
        (10187, {"sources": [{"name": "o"}], "allow_msg_schedules": True}),
        (10052, {"sources": [{"name": "o"}], "allow_msg_counter": True}),
        (10052, {"sources": [{"name": "o", "external": {"api": "$JS.x.API"}}]}),
        (10052, {"sources": [{"name": "o", "consumer": {"name": "c"}}]}),
    ],
)
def test_a_source_that_cannot_be_copied_is_refused(number: int, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        check_sources(_config(**fields))
    assert refused.value.document()["err_code"] == number


def test_transforms_that_overlap_partly_are_accepted() -> None:
    check_sources(_config(**_transforms(("a.*.b", "x.$1"), ("a.c.*", "y.$1"), ("", ""))))


def _checked(new: StreamConfig, *others: StreamConfig) -> None:
    check_origins(new, {config.name: config for config in others}.get)


def test_a_stream_that_copies_itself_by_any_way_is_refused() -> None:
    mirror = _config("m", mirror={"name": "s"})
    others = [_config("a", sources=[{"name": "m"}]), mirror]
    for sources in ([{"name": "s"}], [{"name": "a"}]):
        with pytest.raises(ApiError, match="detected cycle"):
            _checked(_config(sources=sources), *others)
    _checked(_config(sources=[{"name": "b"}]), *others)


def test_a_way_back_by_subjects_that_the_stream_does_not_take_is_no_cycle() -> None:
    _checked(_config(subjects=["x"], sources=[{"name": "s", "filter_subject": "y"}]))
    with pytest.raises(ApiError, match="detected cycle"):
        _checked(_config(subjects=["x.>"], sources=[{"name": "s", "filter_subject": "x.y"}]))


def test_the_messages_of_an_origin_must_fit() -> None:
    origin = _config("o", max_msg_size=100)
    with pytest.raises(ApiError, match="max message size"):
        _checked(_config(sources=[{"name": "o"}], max_msg_size=99), origin)
    _checked(_config(sources=[{"name": "o"}], max_msg_size=100), origin)
    _checked(_config(sources=[{"name": "o"}]), origin)
