"""Signatures of a gateway."""

import base64
import hashlib
import hmac

import pytest

from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.gateway import Gateway
from penstock.protocols.http.channels.replies import ChannelRefusal
from penstock.protocols.http.reply import Event
from tests.unit.log.disks import Hand

KEY, OLD = b"k" * 32, b"o" * 32
NOW = 1_000_000


def sign(content: bytes, key: bytes = KEY) -> str:
    return hmac.new(key, b"%d." % NOW + content, hashlib.sha256).hexdigest()


async def passed(
    header: str, body: bytes = b"hi", method: str = "POST", path: str = "/channel/c"
) -> bytes:
    """The body as a handler reads it, once the gateway let it through."""

    async def receive() -> Event:
        return {"type": "http.request", "body": body, "more_body": False}

    secrets = [base64.b64encode(key).decode() for key in (KEY, OLD)]
    gateway = Gateway(secrets, Bodies(100, 100), 300, clock=Hand(NOW * 1_000_000))
    scope = {
        "headers": [(b"x-broker-signature", header.encode())],
        "method": method,
        "path": path,
        "query_string": b"",
    }
    again = await gateway.checked(scope, receive)
    read: bytes = (await again())["body"]
    return read


async def test_signed_requests_are_accepted_with_their_body() -> None:
    assert await passed(f"t={NOW},v1={sign(b'hi')}") == b"hi"
    assert await passed(f"t={NOW},v1={sign(b'hi', OLD)}") == b"hi"
    assert await passed(f"t={NOW},v1=00,v1={sign(b'hi')}") == b"hi"
    assert await passed(f"t={NOW},v2={sign(b'POST./channel/c.hi')}") == b"hi"


async def test_a_v2_signature_is_valid_for_its_request_only() -> None:
    header = f"t={NOW},v2={sign(b'POST./channel/c.hi')}"
    for changed in ({"method": "PUT"}, {"path": "/channel/d"}, {"body": b"ho"}):
        with pytest.raises(ChannelRefusal, match="invalid signature"):
            await passed(header, **changed)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("", 401),
        ("t=1", 401),
        ("t=,v1=a", 401),
        ("x=1,v1=a", 401),
        (f"t={NOW},v3=a", 401),
        (f"t={NOW - 301},v1=a", 403),
        (f"t={NOW + 301},v1=a", 403),
        (f"t={NOW},v1=", 403),
        (f"t={NOW},v1=ä", 403),
    ],
)
async def test_malformed_late_or_wrong_signatures_are_refused(header: str, status: int) -> None:
    with pytest.raises(ChannelRefusal) as refused:
        await passed(header)
    assert refused.value.status == status


@pytest.mark.parametrize("raw", [b"/channel/c%2Fmessages", b"/channel%2fc/messages"])
async def test_an_encoded_slash_does_not_make_a_path_an_exempt_one(raw: bytes) -> None:
    gateway = Gateway(
        [base64.b64encode(KEY).decode()], Bodies(100, 100), exempt=["/channel/c/messages"]
    )

    async def receive() -> Event:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"headers": [], "method": "PUT", "path": "/channel/c/messages", "query_string": b""}
    good = scope | {"raw_path": b"/channel/%63/messages"}
    assert await gateway.checked(good, receive) is receive
    with pytest.raises(ChannelRefusal, match="missing X-Broker-Signature header"):
        await gateway.checked(scope | {"raw_path": raw}, receive)


def test_a_secret_must_be_base64() -> None:
    with pytest.raises(ValueError, match="base64"):
        Gateway(["%%%"], Bodies(100, 100))
