"""Signatures of deliveries, with the test vector of the Standard Webhooks specification."""

import base64

import pytest

from penstock.delivery.channels.webhook import new_secret, signatures, signed_id, signing_key

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

pytestmark = pytest.mark.feature("C18")


def test_the_signature_is_that_of_the_specification() -> None:
    body = b'{"test": 2432232314}'
    assert signatures([signing_key(SECRET)], ID, 1614265330, body) == SIGNATURE
    two = signatures([b"other", signing_key(SECRET)], ID, 1614265330, body)
    assert two.split(" ")[1] == SIGNATURE


def test_secrets_are_random_and_of_the_right_size() -> None:
    secrets = {new_secret() for _ in range(10)}
    assert len(secrets) == 10
    assert all(24 <= len(base64.b64decode(s.removeprefix("whsec_"))) <= 64 for s in secrets)


def test_a_malformed_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="whsec_"):
        signing_key("whsec_%%%")


def test_a_signed_id_has_no_dots() -> None:
    assert signed_id("a.b.c") == "a_b_c"
