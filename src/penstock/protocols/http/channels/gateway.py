"""Signed requests, where a gateway in front of the channel API signs them.

    X-Broker-Signature: t={unix seconds},v1={hex}       HMAC-SHA256 over "{t}." and the body
    X-Broker-Signature: t={unix seconds},v2={hex}       over "{t}.{method}.{path and query}." and it

`v1` is what existing gateways send; `v2` says which request was signed, so that a signature is good
for no other. Several signatures may stand in one header, while a secret is being replaced.
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
    """Lets signed requests through; `secrets` are base64."""

    def __init__(
        self,
        secrets: Sequence[str],
        bodies: Bodies,
        tolerance_seconds: int = 300,
        exempt: Sequence[str] = ("/_status",),
        clock: Clock | None = None,
    ) -> None:
        """Raises ValueError when a secret is not base64."""
        try:
            self._keys = [base64.b64decode(secret, validate=True) for secret in secrets]
        except binascii.Error as error:
            raise ValueError("a gateway's secret must be base64") from error
        self._bodies, self._tolerance = bodies, tolerance_seconds
        self._exempt = frozenset(tuple(path.split("/")) for path in exempt)
        self._clock = clock or Clock()

    async def checked(self, scope: Event, receive: Receive) -> Receive:
        """Return what the handler reads the body with.

        Raises ChannelRefusal if the request is not signed.
        """
        if path_segments(scope) in self._exempt:
            return receive
        told = next((value for key, value in scope["headers"] if key == HEADER), None)
        if told is None:
            raise ChannelRefusal(401, "missing X-Broker-Signature header")
        seconds, given = _parse(header_text(told))
        if abs(self._clock.now_us() / 1e6 - seconds) > self._tolerance:
            raise ChannelRefusal(403, "request timestamp outside tolerance window")
        async with self._bodies.read(scope, receive) as body:
            data = bytes(body)
            self._demand(scope, seconds, given, data)

        async def again() -> Event:
            return {"type": "http.request", "body": data, "more_body": False}

        return again

    def _demand(
        self, scope: Event, seconds: int, given: Sequence[tuple[str, str]], body: bytes
    ) -> None:
        raw = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        place = raw.partition(b"?")[0] + (b"?" + query if query else b"")
        signed = {
            "v1": b"%d." % seconds + body,
            "v2": b"%d.%b.%b." % (seconds, scope["method"].encode(), place) + body,
        }
        for version, digest in given:
            for key in self._keys:
                right = hmac.digest(key, signed[version], "sha256").hex()
                if hmac.compare_digest(right.encode(), digest.encode()):
                    return
        raise ChannelRefusal(403, "invalid signature")


def _parse(header: str) -> tuple[int, list[tuple[str, str]]]:
    first, *rest = header.split(",")
    name, _, told = first.partition("=")
    given = [(version, digest) for version, _, digest in (part.partition("=") for part in rest)]
    known = all(version in ("v1", "v2") for version, _ in given)
    if name != "t" or not (told.isascii() and told.isdecimal()) or not given or not known:
        raise ChannelRefusal(401, _MALFORMED)
    return int(told[:18]), given
