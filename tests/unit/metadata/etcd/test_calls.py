"""Which calls to etcd are repeated, and which errors they raise."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest

from penstock.formats.protobuf import Method
from penstock.metadata.etcd.calls import EtcdCalls, ResponseTooLarge, TokenRefused
from penstock.metadata.etcd.endpoints import EtcdSettings
from penstock.metadata.etcd.messages import AUTHENTICATE, RANGE, TXN, message
from penstock.metadata.interface import LeaseExpired, MetadataRefused, MetadataUnavailable

Code = grpc.StatusCode
SETTINGS = EtcdSettings(("etcd:1",), 30.0, "user", "canary")
GET = message("RangeRequest", key=b"k")


def failure(code: Any, details: str = "") -> Any:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Endpoint:
    """Returns prepared answers in order, and records the requests."""

    target = "etcd:1"

    def __init__(self, answers: Sequence[object]) -> None:
        self.suspected = False
        self.asked: list[tuple[str, object]] = []
        self._answers: Iterator[object] = iter(answers)
        self._tokens = iter(["first", "second", "third"])

    def unary(self, method: Method) -> Any:
        async def call(request: Any, timeout: float, metadata: object = ()) -> Any:
            assert 0 < timeout <= SETTINGS.call_seconds
            if method is AUTHENTICATE:
                return message("AuthenticateResponse", token=next(self._tokens))
            self.asked.append((method.path, metadata))
            answer = next(self._answers)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


class Endpoints:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def pick(self, seconds: float) -> Endpoint:
        return self._endpoint

    async def close(self) -> None: ...


def calls(*answers: object) -> tuple[EtcdCalls, Endpoint]:
    etcd_calls = EtcdCalls.__new__(EtcdCalls)
    endpoint = Endpoint(answers)
    etcd_calls._settings = SETTINGS
    etcd_calls._endpoints = Endpoints(endpoint)  # type: ignore[assignment]
    etcd_calls._loop = asyncio.get_running_loop()
    etcd_calls._token = ""
    etcd_calls._login = asyncio.Lock()
    etcd_calls._closed = False
    return etcd_calls, endpoint


async def test_a_read_without_an_answer_is_sent_again() -> None:
    away = failure(Code.UNAVAILABLE), failure(Code.DEADLINE_EXCEEDED), failure(Code.INTERNAL)
    asked, endpoint = calls(*away, "answer")
    assert await asked.read(RANGE, GET) == "answer"
    assert len(endpoint.asked) == 4
    assert not endpoint.suspected


@pytest.mark.parametrize(
    "code",
    [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.UNKNOWN, Code.INTERNAL, Code.ABORTED,
     Code.CANCELLED, Code.RESOURCE_EXHAUSTED, Code.DATA_LOSS],
)  # fmt: skip
async def test_a_write_without_an_answer_is_sent_once_and_its_outcome_is_open(code: Any) -> None:
    asked, endpoint = calls(failure(code, "why"), "never")
    with pytest.raises(MetadataUnavailable, match="why"):
        await asked.write(TXN, message("TxnRequest"))
    assert len(endpoint.asked) == 1
    assert endpoint.suspected == (code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED))


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseExpired),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", MetadataRefused),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", MetadataRefused),
        (Code.UNAUTHENTICATED, "who are you", MetadataRefused),
        (Code.RESOURCE_EXHAUSTED, "Received message larger than max", ResponseTooLarge),
    ],
)
async def test_a_refusal_is_raised_at_once(code: Any, details: str, error: type[Exception]) -> None:
    asked, endpoint = calls(failure(code, details), "never")
    with pytest.raises(error) as caught:
        await asked.read(RANGE, GET)
    assert type(caught.value) is error
    assert "canary" not in str(caught.value)
    assert len(endpoint.asked) == 1


async def test_a_token_that_is_refused_is_replaced_and_the_call_repeated() -> None:
    old = failure(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")
    asked, endpoint = calls("one", old, "two", "three")
    transaction = message("TxnRequest")
    assert await asked.write(TXN, transaction) == "one"
    assert await asked.write(TXN, transaction) == "two"
    assert await asked.read(RANGE, GET) == "three"
    tokens = [metadata for _, metadata in endpoint.asked]
    first, second = (("token", "first"),), (("token", "second"),)
    assert tokens == [first, first, second, second]


async def test_a_new_token_that_is_refused_is_an_error() -> None:
    old = failure(Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old")
    asked, endpoint = calls(old, old, "never")
    with pytest.raises(TokenRefused):
        await asked.write(TXN, message("TxnRequest"))
    assert len(endpoint.asked) == 2


async def test_a_closed_connection_is_unavailable_and_a_cancelled_caller_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, _ = calls(asyncio.CancelledError(), asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await asked.write(TXN, message("TxnRequest"))
    asked, endpoint = calls()

    async def closed_under_it(*_: object, **__: object) -> None:
        await asked.close()
        raise asyncio.CancelledError

    monkeypatch.setattr(endpoint, "unary", lambda _: closed_under_it)
    asked._token = "token"
    with pytest.raises(MetadataUnavailable, match="closed"):
        await asked.write(TXN, message("TxnRequest"))
    with pytest.raises(MetadataUnavailable, match="closed"):
        await asked.read(RANGE, GET)
