import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.objects.s3_credentials import FoundKeys, GivenKeys
from penstock.objects.s3_requests import S3Credentials, S3Response
from tests.unit.objects.exchanging import CannedExchanges

MACHINE = "http://169.254.169.254/latest"
ROLES = f"{MACHINE}/meta-data/iam/security-credentials/"
KEYS = S3Credentials("AK", "SK", "TK")
OFF = {"AWS_EC2_METADATA_DISABLED": "true"}


def answer(minutes: float) -> S3Response:
    """A reply with keys that are valid for this time."""
    until = datetime.now(UTC) + timedelta(minutes=minutes)
    body = {
        "AccessKeyId": "AK",
        "SecretAccessKey": "SK",
        "Token": "TK",
        "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return S3Response(200, json.dumps(body).encode())


def machine(minutes: float) -> dict[str, S3Response | list[S3Response]]:
    return {
        f"PUT {MACHINE}/api/token": S3Response(200, b"session"),
        f"GET {ROLES}": S3Response(200, b"broker\n"),
        f"GET {ROLES}broker": answer(minutes),
    }


async def test_configured_keys_are_used() -> None:
    keys = GivenKeys(KEYS)
    assert await keys.find() == KEYS
    await keys.close()


async def test_keys_of_the_environment_come_first() -> None:
    environ = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_SESSION_TOKEN": "TK"}
    exchanges = CannedExchanges(machine(60))
    assert await FoundKeys(environ, exchanges).find() == KEYS
    assert exchanges.asked == []


async def test_an_access_key_without_its_secret_is_ignored() -> None:
    environ = {"AWS_ACCESS_KEY_ID": "AK", **OFF}
    assert await FoundKeys(environ, CannedExchanges({})).find() is None


@pytest.mark.parametrize("profile", ["default", "broker"])
async def test_keys_of_a_profile(tmp_path: Path, profile: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        f"[{profile}]\naws_access_key_id = AK\naws_secret_access_key = SK\n"
        "aws_session_token = TK\n[half]\naws_access_key_id = AK\n"
    )
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(file), **OFF}
    if profile != "default":
        environ["AWS_PROFILE"] = profile
    assert await FoundKeys(environ, CannedExchanges({})).find() == KEYS
    for other in ("half", "none"):
        assert await FoundKeys(environ | {"AWS_PROFILE": other}, CannedExchanges({})).find() is None


async def test_keys_for_a_web_identity(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the.web.token\n")
    environ = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/broker",
        "AWS_REGION": "eu-west-1",
    }
    url = (
        "https://sts.eu-west-1.amazonaws.com/?Action=AssumeRoleWithWebIdentity"
        "&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fbroker&RoleSessionName=penstock"
        "&Version=2011-06-15&WebIdentityToken=the.web.token"
    )
    body = (
        '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AK</AccessKeyId>"
        "<SecretAccessKey>SK</SecretAccessKey><SessionToken>TK</SessionToken>"
        "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
        "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    )
    exchanges = CannedExchanges({f"GET {url}": S3Response(200, body.encode())})
    assert await FoundKeys(environ, exchanges).find() == KEYS
    for bad in (S3Response(200, b"<x/>"), S3Response(200, b"not xml"), S3Response(403, b"")):
        exchanges = CannedExchanges({f"GET {url}": bad})
        assert await FoundKeys(environ | OFF, exchanges).find() is None


@pytest.mark.parametrize(
    ("environ", "url", "authorization"),
    [
        (
            {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x"},
            "http://169.254.170.2/v2/x",
            None,
        ),
        (
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://localhost/keys",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": "let me in",
            },
            "http://localhost/keys",
            "let me in",
        ),
    ],
)
async def test_keys_of_a_container(
    environ: dict[str, str], url: str, authorization: str | None
) -> None:
    exchanges = CannedExchanges({f"GET {url}": answer(60)})
    assert await FoundKeys(environ, exchanges).find() == KEYS
    assert exchanges.asked[0].headers.get("authorization") == authorization


async def test_the_token_for_a_containers_keys_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    environ = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://localhost/keys",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    exchanges = CannedExchanges({"GET http://localhost/keys": answer(60)})
    assert await FoundKeys(environ, exchanges).find() == KEYS
    assert exchanges.asked[0].headers == {"authorization": "from a file"}


async def test_keys_of_the_machine() -> None:
    exchanges = CannedExchanges(machine(60))
    assert await FoundKeys({}, exchanges).find() == KEYS
    assert [asked.headers.get("x-aws-ec2-metadata-token") for asked in exchanges.asked] == [
        None,
        "session",
        "session",
    ]
    assert await FoundKeys(OFF, CannedExchanges(machine(60))).find() is None


async def test_keys_are_cached_and_fetched_again_before_they_expire() -> None:
    for minutes, fetches in ((60, 1), (4, 2)):
        exchanges = CannedExchanges(machine(minutes))
        keys = FoundKeys({}, exchanges)
        assert await keys.find() == await keys.find() == KEYS
        assert sum(asked.url == f"{ROLES}broker" for asked in exchanges.asked) == fetches


async def test_a_machine_without_keys_has_none() -> None:
    exchanges = CannedExchanges({})
    keys = FoundKeys({"HOME": "/nonexistent"}, exchanges)
    assert await keys.find() is None
    await keys.close()
    assert exchanges.closed
