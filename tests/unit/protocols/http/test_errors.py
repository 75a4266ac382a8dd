import importlib
import pkgutil

import msgspec

import penstock
from penstock.formats.api import ErrorReply
from penstock.metadata.etcd import TokenRefused
from penstock.model.errors import (
    AppendQueueFull,
    LogReadOnly,
    NameInvalid,
    OffsetGone,
    Overloaded,
    OwnedElsewhere,
    PenstockError,
    ResourceExists,
    ResourceInUse,
    ResourceUnknown,
    VersionUnknown,
)
from penstock.model.units import Offset
from penstock.protocols.http.errors import STATUS, BadRequest, failed, status_of

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
    "ChannelRefusal",
    "ProposalInvalid",
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


def test_the_reply_to_a_failed_request_has_the_sentence_and_the_code_of_the_error() -> None:
    body = ErrorReply("bad request: no", "bad_request")
    assert failed(BadRequest("no")) == (400, body, (), b"application/json", False)
    unknown = ErrorReply("topic t does not exist", "topic_not_found")
    assert failed(ResourceUnknown("topic", "t"))[:2] == (404, unknown)
    assert failed(BadRequest("no such topic", "topic_not_found")).body == ErrorReply(
        "bad request: no such topic", "topic_not_found"
    )


def test_the_reply_to_a_request_for_a_topic_of_another_broker_names_the_owner() -> None:
    reply = failed(OwnedElsewhere("t", "b2", "10.0.0.2:8080"))
    assert isinstance(reply.body, ErrorReply)
    assert (reply.status, msgspec.to_builtins(reply.body)) == (
        421,
        {
            "message": "topic t: another broker owns it: b2 at 10.0.0.2:8080; ask there",
            "code": "owned_elsewhere",
            "owner": {"broker": "b2", "address": "10.0.0.2:8080"},
        },
    )
