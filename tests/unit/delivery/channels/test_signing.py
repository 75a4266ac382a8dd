"""Signatures by the vector that the Standard Webhooks documents give."""

import base64

import pytest

from penstock.delivery.channels.signing import key_of, new_secret, signatures, signed_id

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
RIGHT = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

pytestmark = pytest.mark.feature("C18")


def test_the_signature_of_the_vector() -> None:
    body = b'{"test": 2432232314}'
    assert signatures([key_of(SECRET)], ID, 1614265330, body) == RIGHT
    two = signatures([b"other", key_of(SECRET)], ID, 1614265330, body)
    assert two.split(" ")[1] == RIGHT


def test_secrets_are_random_and_of_the_right_size() -> None:
    secrets = {new_secret() for _ in range(10)}
    assert len(secrets) == 10
    assert all(24 <= len(base64.b64decode(s.removeprefix("whsec_"))) <= 64 for s in secrets)


def test_what_is_no_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="whsec_"):
        key_of("whsec_%%%")


def test_an_id_has_no_dot_where_it_is_signed() -> None:
    assert signed_id("a.b.c") == "a_b_c"
