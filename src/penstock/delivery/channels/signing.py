"""Signatures of deliveries as Standard Webhooks has them, so that receivers use its libraries.

    webhook-id: {id}      webhook-timestamp: {seconds}      webhook-signature: v1,{base64} v1,...

A signature is HMAC-SHA256 over `{id}.{seconds}.{body}`. While a secret is being replaced, there is
one by each.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable
from typing import Final

from penstock.host.entropy import random_bytes

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32


def new_secret() -> str:
    return PREFIX + base64.b64encode(random_bytes(SECRET_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The key that a secret stands for; raises ValueError when it is none."""
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a secret must be {PREFIX} and base64") from error


def signed_id(message_id: str) -> str:
    """The id as it is signed: a dot would end it early."""
    return message_id.replace(".", "_")


def signatures(keys: Iterable[bytes], id_: str, seconds: int, body: bytes) -> str:
    """The value of the signature header."""
    content = b"%b.%d.%b" % (id_.encode(), seconds, body)
    return " ".join(
        "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys
    )
