import importlib
import pkgutil

import penstock
from penstock.doors.http.errors import STATUS, BadRequest, Refused, failed, status_of
from penstock.metadata.etcd_calls import TokenRefused
from penstock.model.errors import (
    AppendQueueFull,
    LogReadOnly,
    NameInvalid,
    OffsetGone,
    Overloaded,
    PenstockError,
    ResourceExists,
    ResourceInUse,
    ResourceUnknown,
    VersionUnknown,
)
from penstock.model.units import Offset

NOT_OF_A_REQUEST = {
    "ApiError",
    "BrokerRefused",
    "BrokerUnreachable",
    "ManifestExists",
    "Deposed",
    "MergeFailed",
    "NatsError",
    "NatsProtocolError",
    "NatsRefused",
    "NatsStatus",
    "NatsTimeout",
    "NatsUnreachable",
    "Plain",
    "BadRequest",
    "Refused",
}
"""Errors of clients, of tools, of work in the background; and those that tell their own status."""


def _subclasses(kind: type[PenstockError]) -> set[type[PenstockError]]:
    direct = set(kind.__subclasses__())
    return direct.union(*map(_subclasses, direct)) if direct else set()


def test_every_error_that_a_request_may_meet_has_a_status() -> None:
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    unknown = {
        kind.__name__
        for kind in _subclasses(PenstockError)
        if kind.__module__.startswith("penstock.")
        and not kind.__module__.startswith("penstock.spark.")
        and not set(kind.__mro__) & STATUS.keys()
    }
    assert unknown <= NOT_OF_A_REQUEST


def test_the_nearest_ancestor_decides() -> None:
    assert status_of(NameInvalid("topic", "a", "b")) == 400
    assert status_of(ResourceUnknown("topic", "a")) == 404
    assert status_of(OffsetGone("t", None, Offset(1), Offset(2))) == 404
    assert status_of(ResourceExists("topic", "a")) == 409
    assert status_of(ResourceInUse("topic", "a", "b")) == 409
    assert status_of(Overloaded("a", "b", 1)) == 429
    assert status_of(LogReadOnly("t", "r")) == 503
    assert status_of(AppendQueueFull("t", 1, 1)) == 503
    assert status_of(TokenRefused("r")) == 503
    assert status_of(VersionUnknown("a", 2, 1)) == 500
    assert status_of(PenstockError("?")) == 500


def test_a_failure_is_a_reply_with_its_sentence() -> None:
    assert failed(BadRequest("no")) == (
        400,
        {"message": "bad request: no"},
        (),
        b"application/json",
    )
    assert failed(Refused(418, "tea"))[:2] == (418, {"message": "tea"})
