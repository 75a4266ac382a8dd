import pytest
from structlog.testing import capture_logs

from penstock.objects import ObjectStoreError, StoreUnavailable
from penstock.objects.s3_credentials import FoundKeys, GivenKeys
from penstock.objects.s3_requests import S3Credentials, S3Response
from penstock.objects.s3_uploads import S3Bucket, S3Uploads
from tests.unit.objects.exchanging import CannedExchanges

KEYS = GivenKeys(S3Credentials("AK", "SK"))
BUCKET = S3Bucket("https://s3.example:9000/base", "logs", "pre/", "r1")
PATH = "https://s3.example:9000/base/logs"
LIST = f"GET {PATH}?max-uploads=2&prefix=pre%2Fa&uploads="
GONE = S3Response(204, b"")
NONE = S3Response(200, b"<ListMultipartUploadsResult/>")


def page(*uploads: tuple[str, str], next_: tuple[str, str] | None = None) -> S3Response:
    items = "".join(
        f"<Upload><Key>{key}</Key><UploadId>{id_}</UploadId></Upload>" for key, id_ in uploads
    )
    marks = (
        f"<IsTruncated>true</IsTruncated><NextKeyMarker>{next_[0]}</NextKeyMarker>"
        f"<NextUploadIdMarker>{next_[1]}</NextUploadIdMarker>"
        if next_
        else "<IsTruncated>false</IsTruncated>"
    )
    body = f'<ListMultipartUploadsResult xmlns="urn:s3">{items}{marks}</ListMultipartUploadsResult>'
    return S3Response(200, body.encode())


def uploads(
    answers: dict[str, S3Response | list[S3Response]], bucket: S3Bucket = BUCKET
) -> S3Uploads:
    return S3Uploads(bucket, KEYS, CannedExchanges(answers), page_uploads=2)


async def test_every_page_is_read_and_every_upload_aborted() -> None:
    answers: dict[str, S3Response | list[S3Response]] = {
        LIST: [page(("pre/a1", "i1"), ("pre/a 2", "i/2"), next_=("pre/a 2", "i/2")), NONE],
        f"GET {PATH}?key-marker=pre%2Fa%202&max-uploads=2&prefix=pre%2Fa"
        "&upload-id-marker=i%2F2&uploads=": page(("pre/a3", "i3")),
        f"DELETE {PATH}/pre/a1?uploadId=i1": GONE,
        f"DELETE {PATH}/pre/a%202?uploadId=i%2F2": GONE,
        f"DELETE {PATH}/pre/a3?uploadId=i3": S3Response(404, b""),
    }
    exchanges = CannedExchanges(answers)
    assert await S3Uploads(BUCKET, KEYS, exchanges, page_uploads=2).abort("a") == 3
    assert [asked.method for asked in exchanges.asked] == ["GET"] * 2 + ["DELETE"] * 3 + ["GET"]
    assert all(asked.headers["host"] == "s3.example:9000" for asked in exchanges.asked)


async def test_exactly_aborts_uploads_of_the_key_alone() -> None:
    answers: dict[str, S3Response | list[S3Response]] = {
        LIST: [page(("pre/a", "i1"), ("pre/ab", "i2")), page(("pre/ab", "i2"))],
        f"DELETE {PATH}/pre/a?uploadId=i1": GONE,
    }
    assert await uploads(answers).abort("a", exactly=True) == 1


async def test_before_aborts_uploads_of_earlier_keys_only() -> None:
    answers: dict[str, S3Response | list[S3Response]] = {
        LIST: [page(("pre/a1", "i1"), ("pre/a2", "i2")), page(("pre/a2", "i2"))],
        f"DELETE {PATH}/pre/a1?uploadId=i1": GONE,
    }
    assert await uploads(answers).abort("a", before="a2") == 1


async def test_an_upload_that_stays_is_counted_once_and_left_after_some_rounds() -> None:
    answers: dict[str, S3Response | list[S3Response]] = {
        LIST: page(("pre/a", "i1")),
        f"DELETE {PATH}/pre/a?uploadId=i1": GONE,
    }
    assert await uploads(answers).abort("a") == 1


async def test_a_repeated_page_ends_the_listing() -> None:
    again = page(next_=("pre/a", "i1"))
    marked = LIST.replace("?max", "?key-marker=pre%2Fa&max")
    marked = marked.replace("&uploads=", "&upload-id-marker=i1&uploads=")
    assert await uploads({LIST: again, marked: again}).abort("a") == 0


async def test_the_bucket_may_be_in_the_host_name() -> None:
    bucket = S3Bucket("https://s3.example", "logs", "", "r1", path_style=False)
    answers: dict[str, S3Response | list[S3Response]] = {
        "GET https://logs.s3.example/?max-uploads=2&prefix=a&uploads=": [page(("a", "i1")), NONE],
        "DELETE https://logs.s3.example/a?uploadId=i1": GONE,
    }
    assert await uploads(answers, bucket).abort("a") == 1


@pytest.mark.parametrize(
    "reply",
    [
        S3Response(501, b""),
        S3Response(405, b""),
        S3Response(404, b"<Error><Code>NoSuchUpload</Code></Error>"),
    ],
)
async def test_a_store_without_multipart_uploads_has_none(reply: S3Response) -> None:
    assert await uploads({LIST: reply}).abort("a") == 0


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        (
            S3Response(404, b"<Error><Code>NoSuchBucket</Code></Error>"),
            ObjectStoreError,
            "status 404: NoSuchBucket",
        ),
        (
            S3Response(403, b"<Error><Code>Denied</Code></Error>"),
            ObjectStoreError,
            "status 403: Denied",
        ),
        (S3Response(400, b"not xml"), ObjectStoreError, "status 400: no reason"),
        (S3Response(503, b""), StoreUnavailable, "status 503"),
        (S3Response(200, b"<half"), StoreUnavailable, "the list of uploads is not XML"),
    ],
)
async def test_refusals_and_outages_are_different_errors(
    reply: S3Response, kind: type[ObjectStoreError], reason: str
) -> None:
    with pytest.raises(ObjectStoreError) as error:
        await uploads({LIST: reply}).abort("a")
    assert type(error.value) is kind
    assert error.value.reason == reason


async def test_no_reply_is_an_outage() -> None:
    with pytest.raises(StoreUnavailable):
        await uploads({}).abort("a")


async def test_without_keys_an_event_says_that_nothing_was_removed() -> None:
    keys = FoundKeys({"AWS_EC2_METADATA_DISABLED": "true"}, CannedExchanges({}))
    exchanges = CannedExchanges({})
    with capture_logs() as events:
        assert await S3Uploads(BUCKET, keys, exchanges).abort("a") == 0
    assert [(event["event"], event["prefix"]) for event in events] == [("uploads_not_removed", "a")]
    assert exchanges.asked == []


async def test_closing_closes_the_connections() -> None:
    exchanges = CannedExchanges({})
    await S3Uploads(BUCKET, KEYS, exchanges).close()
    assert exchanges.closed
