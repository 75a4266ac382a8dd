from datetime import UTC, datetime

import pytest

from penstock.objects.signing import Credentials, query_string, quoted_path, signed_headers

# The examples of AWS, "Signature Calculations for the Authorization Header".
KEYS = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
WHEN = datetime(2013, 5, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    ("path", "query", "extra", "signature"),
    [
        (
            "/test.txt",
            {},
            {"range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "/",
            {"lifecycle": ""},
            {},
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "/",
            {"prefix": "J", "max-keys": "2"},
            {},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_signatures_are_those_of_the_documented_examples(
    path: str, query: dict[str, str], extra: dict[str, str], signature: str
) -> None:
    headers = signed_headers("GET", HOST, path, query, KEYS, "us-east-1", WHEN, extra)
    names = ";".join(sorted({*extra, "host", "x-amz-content-sha256", "x-amz-date"}))
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders={names}, Signature={signature}"
    )


def test_the_token_of_temporary_keys_is_sent_and_signed() -> None:
    keys = Credentials("AK", "SK", "the token")
    headers = signed_headers("GET", HOST, "/", {}, keys, "us-east-1", WHEN)
    assert headers["x-amz-security-token"] == "the token"
    assert "x-amz-security-token" in headers["authorization"]


def test_what_is_signed_is_quoted_as_the_rules_say() -> None:
    assert quoted_path("/b/a b/é+%~") == "/b/a%20b/%C3%A9%2B%25~"
    assert query_string({"b": "x/y z", "a": ""}) == "a=&b=x%2Fy%20z"


def test_credentials_show_nothing() -> None:
    assert repr(Credentials("AK1", "SK2", "TOKEN3")) == "Credentials()"
