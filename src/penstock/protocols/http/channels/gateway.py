"""Verifies the signatures of requests that a gateway in front of the channel API signs.

    X-Broker-Signature: t={unix seconds},v1={hex}       HMAC-SHA256 over "{t}." and the body
    X-Broker-Signature: t={unix seconds},v2={hex}       over "{t}.{method}.{path and query}." and it

Existing gateways send `v1`. `v2` covers the method and the path, so that a signature is valid for
one request only. During a change of secrets one header may have several signatures.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Final

from penstock.host.clock import Clock
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.replies import ChannelRefusal
from penstock.protocols.http.reply import Event, Receive
from penstock.protocols.http.routes import header_text, path_segments

HEADER: Final = b"x-broker-signature"
_MALFORMED: Final = "malformed X-Broker-Signature header"


class Gateway:
    """Accepts requests that are signed with one of its secrets."""

    def __init__(
        self,
        secrets: Sequence[str],
        bodies: Bodies,
        tolerance_seconds: int = 300,
        exempt: Sequence[str] = ("/_status",),
        clock: Clock | None = None,
    ) -> None:
        """`exempt` are paths without signatures; raises ValueError if a secret is not base64."""
        try:
            self._keys = [base64.b64decode(secret, validate=True) for secret in secrets]
        except binascii.Error as error:
            raise ValueError("a gateway's secret must be base64") from error
        self._bodies, self._tolerance = bodies, tolerance_seconds
        self._exempt = frozenset(tuple(path.split("/")) for path in exempt)
        self._clock = clock or Clock()

    async def checked(self, scope: Event, receive: Receive) -> Receive:
        """Verify a request and return the function that reads its body again.

        Raises ChannelRefusal if the signature is missing or invalid.
        """
        if path_segments(scope) in self._exempt:
            return receive
        header = next((value for key, value in scope["headers"] if key == HEADER), None)
        if header is None:
            raise ChannelRefusal(401, "missing X-Broker-Signature header")
        seconds, signatures = _parse(header_text(header))
        if abs(self._clock.now_us() / 1e6 - seconds) > self._tolerance:
            raise ChannelRefusal(403, "request timestamp outside tolerance window")
        async with self._bodies.read(scope, receive) as body:
            data = bytes(body)
            self._verify(scope, seconds, signatures, data)

        async def receive_again() -> Event:
            return {"type": "http.request", "body": data, "more_body": False}

        return receive_again

    def _verify(
        self, scope: Event, seconds: int, signatures: Sequence[tuple[str, str]], body: bytes
    ) -> None:
        raw = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        path = raw.partition(b"?")[0] + (b"?" + query if query else b"")
        signed = {
            "v1": b"%d." % seconds + body,
            "v2": b"%d.%b.%b." % (seconds, scope["method"].encode(), path) + body,
        }
        for version, digest in signatures:
            for key in self._keys:
                expected = hmac.digest(key, signed[version], "sha256").hex()
                if hmac.compare_digest(expected.encode(), digest.encode()):
                    return
        raise ChannelRefusal(403, "invalid signature")


def _parse(header: str) -> tuple[int, list[tuple[str, str]]]:
    """The time in a signature header, and its signatures with their versions."""
    first, *parts = header.split(",")
    name, _, seconds = first.partition("=")
    signatures = [(version, digest) for version, _, digest in (p.partition("=") for p in parts)]
    known = all(version in ("v1", "v2") for version, _ in signatures)
    is_time = name == "t" and seconds.isascii() and seconds.isdecimal()
    if not is_time or not signatures or not known:
        raise ChannelRefusal(401, _MALFORMED)
    return int(seconds[:18]), signatures
