import asyncio
import time

import pytest
from opendal import AsyncOperator

from penstock.objects import ObjectMissing, ObjectStoreError, StoreUnavailable
from penstock.objects.calls import (
    EXIT_DELAY_SECONDS,
    REASON_CHARS_MAX,
    CallLimits,
    Failure,
    Meaning,
    StoreCalls,
    meaning,
    reason,
)


def calls(seconds: float = 30.0, retries_max: int = 1) -> StoreCalls:
    limits = CallLimits(call_seconds=seconds, retries_max=retries_max)
    return StoreCalls(AsyncOperator("memory"), limits)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_call_returns_the_result_of_opendal() -> None:
    one = calls(retries_max=0)
    await one.run(one.operator.write("a", b"x"))
    assert await one.run(one.operator.read("a")) == b"x"
    await one.close()


async def test_a_call_past_its_deadline_is_cancelled_and_means_that_the_store_is_away() -> None:
    task = asyncio.create_task(never())
    with pytest.raises(Failure, match=r"not done within 0\.01 seconds") as failure:
        await calls(0.01).run(task)
    assert failure.value.meaning is Meaning.AWAY
    assert task.cancelled()


async def test_an_error_of_opendal_becomes_a_failure() -> None:
    one = calls()
    with pytest.raises(Failure) as failure:
        await one.run(one.operator.stat("missing"))
    assert failure.value.meaning is Meaning.MISSING


async def test_an_error_of_a_writer_becomes_a_failure_too() -> None:
    async def fail() -> None:
        raise OSError("Unexpected (persistent) at write, context: { } => io operation timeout")

    with pytest.raises(Failure, match="io operation timeout") as failure:
        await calls().run(fail())
    assert failure.value.meaning is Meaning.AWAY


async def test_a_bug_is_not_reported_as_a_failure_of_the_store() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await calls().run(fail())


async def test_close_waits_for_running_calls_and_refuses_new_ones() -> None:
    one, end = calls(), asyncio.Event()
    call = asyncio.create_task(one.run(end.wait()))
    await asyncio.sleep(0)
    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0)
    end.set()
    await closing
    assert await call is True
    with pytest.raises(Failure, match="the store is closed"):
        await one.run(asyncio.sleep(0))


async def test_close_cancels_calls_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.objects.calls.DRAIN_SECONDS", 0.01)
    one = calls()
    call = asyncio.create_task(one.run(never()))
    await asyncio.sleep(0)
    await one.close()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_the_process_sleeps_before_its_exit_only_after_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, slept = calls(), list[float]()
    await one.run(asyncio.sleep(0))
    now = time.monotonic()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    StoreCalls.sleep_before_exit()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    StoreCalls.sleep_before_exit()
    assert 0 < slept[0] <= EXIT_DELAY_SECONDS
    assert slept[1] == 0


PRECONDITION = """\
ConditionNotMatch (persistent) at write => S3Error { code: "PreconditionFailed", message: "At least\
 one of the pre-conditions you specified did not hold", resource: "/b/k", request_id: "18E" }

Context:
   service_operation: PutObject
   response: Parts { status: 412, version: HTTP/1.1, headers: {"content-length": "321"} }
"""
BAD_DIGEST = """\
Unexpected (persistent) at write => S3Error { code: "BadDigest", message: "The Content-Md5 you\
 specified did not match what we received.", resource: "/b/k" }

Context:
   response: Parts { status: 400, version: HTTP/1.1, headers: {} }
"""
SLOW_DOWN = """\
Unexpected (persistent) at read

Context:
   response: Parts { status: 503, version: HTTP/1.1, headers: {"content-length": "0"} }
   range: 0-
"""
TIMEOUT = (
    "Unexpected (persistent) at write, context: { timeout: 0.3 } => io operation timeout reached"
)
REFUSED_CONNECTION = """\
Unexpected (persistent) at stat => send http request

Context:
   url: http://host/bucket/k

Source:
   error sending request: client error (Connect): refused

Backtrace:
   0: <unknown>
"""
NO_BUCKET = """\
NotFound (persistent) at read => S3Error { code: "NoSuchBucket", message: "gone" }

Context:
   response: Parts { status: 404, version: HTTP/1.1, headers: {} }
"""
GCS = """\
{kind} (permanent) at stat => GcsErrorResponse {{ error: GcsError {{ code: {status}, message: \
"{message}", errors: [GcsErrorDetail {{ domain: "global", location: "", location_type: "", message:\
 "{message}", reason: "{reason}" }}] }} }}

Context:
   response: Parts {{ status: {status}, version: HTTP/1.1, headers: {{}} }}
"""


def gcs(kind: str, status: int, message: str, reason: str) -> str:
    return GCS.format(kind=kind, status=status, message=message, reason=reason)


GCS_NO_OBJECT = gcs("NotFound", 404, "No such object: b/Bucket b does not exist.", "notFound")
GCS_NO_BUCKET = gcs("NotFound", 404, "The specified bucket does not exist.", "notFound")
GCS_DENIED = gcs("PermissionDenied", 403, "no access", "forbidden")
GCS_GONE = gcs("Unexpected", 410, "The upload is gone", "uploadGone")
DENIED = "PermissionDenied (persistent) at read\n\nContext:\n   response: Parts { status: 403 }\n"


@pytest.mark.parametrize(
    ("text", "expected", "line"),
    [
        (PRECONDITION, Meaning.TAKEN, "S3Error: 412: PreconditionFailed"),
        ("AlreadyExists (permanent) at write", Meaning.TAKEN, "AlreadyExists (permanent) at write"),
        (BAD_DIGEST, Meaning.DAMAGED, "S3Error: 400: BadDigest"),
        (SLOW_DOWN, Meaning.AWAY, "Unexpected (persistent) at read: 503"),
        (TIMEOUT, Meaning.AWAY, "io operation timeout reached"),
        (
            REFUSED_CONNECTION,
            Meaning.AWAY,
            "send http request: error sending request: client error (Connect): refused",
        ),
        ("NotFound (persistent) at stat", Meaning.MISSING, "NotFound (persistent) at stat"),
        (NO_BUCKET, Meaning.REFUSED, "S3Error: 404: NoSuchBucket"),
        (DENIED, Meaning.REFUSED, "PermissionDenied (persistent) at read: 403"),
        (GCS_NO_OBJECT, Meaning.MISSING, "GcsErrorResponse: 404: notFound"),
        (GCS_NO_BUCKET, Meaning.REFUSED, "GcsErrorResponse: 404: notFound"),
        (GCS_DENIED, Meaning.REFUSED, "GcsErrorResponse: 403: forbidden"),
        (GCS_GONE, Meaning.DAMAGED, "GcsErrorResponse: 410: uploadGone"),
        (
            "RateLimited (persistent) at read => x status: 429 y",
            Meaning.AWAY,
            "x status: 429 y: 429",
        ),
        ("Unexpected (persistent) at write => x status: 400 y", Meaning.REFUSED, None),
        ("Unexpected (persistent) at  => reader got too little data", Meaning.SHORT, None),
        ("RangeNotSatisfied (persistent) at read", Meaning.SHORT, None),
        ("ConfigInvalid (permanent) at x", Meaning.REFUSED, None),
        ("anything else", Meaning.REFUSED, "anything else"),
        ("", Meaning.REFUSED, ""),
    ],
)
def test_an_error_means_what_its_text_says(text: str, expected: Meaning, line: str | None) -> None:
    assert meaning(text) is expected
    assert line is None or reason(text) == line


def test_a_reason_is_one_short_line() -> None:
    assert len(reason("Unexpected (persistent) at x => " + "y" * 1000)) == REASON_CHARS_MAX
    assert "\n" not in reason(REFUSED_CONNECTION)


@pytest.mark.parametrize(
    ("meaning", "kind"),
    [
        (Meaning.MISSING, ObjectMissing),
        (Meaning.AWAY, StoreUnavailable),
        (Meaning.REFUSED, ObjectStoreError),
        (Meaning.SHORT, ObjectStoreError),
        (Meaning.TAKEN, ObjectStoreError),
        (Meaning.DAMAGED, ObjectStoreError),
    ],
)
def test_every_meaning_has_its_error(meaning: Meaning, kind: type[ObjectStoreError]) -> None:
    error = Failure(meaning, "the reason").about("a/b")
    assert type(error) is kind
    assert error.key == "a/b"
