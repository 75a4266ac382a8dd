"""Encrypts tokens and signing secrets at rest, if the configuration has a key for that.

A sealed text is `sealed:` and base64 of nonce, ciphertext and tag. The keystream is HMAC-SHA256
over the nonce and a counter, the tag is HMAC-SHA256 over nonce and ciphertext with another key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

from penstock.host.entropy import random_bytes
from penstock.model.errors import FormatError

MARK: Final = "sealed:"
NONCE_BYTES: Final = 16
TAG_BYTES: Final = 16
_BLOCK_BYTES: Final = 32


class Sealing:
    """Seals texts with a key; without a key it leaves them as they are."""

    def __init__(self, key: str = "") -> None:
        self._key = key.encode()
        self._stream_key = hmac.digest(self._key, b"penstock stream", "sha256")
        self._tag_key = hmac.digest(self._key, b"penstock tag", "sha256")

    def seal(self, text: str) -> str:
        if not self._key:
            return text
        nonce = random_bytes(NONCE_BYTES)
        sealed = nonce + self._apply_keystream(nonce, text.encode())
        return MARK + base64.b64encode(sealed + self._tag(sealed)).decode()

    def unseal(self, stored: str) -> str:
        """The text that was sealed; raises FormatError if it was sealed with another key."""
        if not stored.startswith(MARK):
            return stored
        try:
            data = base64.b64decode(stored.removeprefix(MARK), validate=True)
        except binascii.Error:
            data = b""
        sealed, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
        if not self._key or not hmac.compare_digest(self._tag(sealed), tag):
            raise FormatError("a secret was sealed with another key than channels.sealing_key")
        return self._apply_keystream(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]).decode()

    def _tag(self, sealed: bytes) -> bytes:
        return hmac.digest(self._tag_key, sealed, "sha256")[:TAG_BYTES]

    def _apply_keystream(self, nonce: bytes, data: bytes) -> bytes:
        blocks = range(-(-len(data) // _BLOCK_BYTES))
        stream = b"".join(
            hmac.digest(self._stream_key, nonce + number.to_bytes(8, "big"), "sha256")
            for number in blocks
        )
        return bytes(a ^ b for a, b in zip(data, stream, strict=False))
