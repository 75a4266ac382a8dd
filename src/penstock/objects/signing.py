"""Signatures of requests to S3, version 4: what AWS documents, no more than we send. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote

ALGORITHM: Final = "AWS4-HMAC-SHA256"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
UNRESERVED: Final = "-_.~"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who signs; nothing of it is shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def query_string(query: Mapping[str, str]) -> str:
    """The query as it is signed and must be sent."""
    pairs = sorted((quote(k, UNRESERVED), quote(v, UNRESERVED)) for k, v in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def quoted_path(path: str) -> str:
    """The path as it is signed and must be sent."""
    return quote(path, f"/{UNRESERVED}")


def signed_headers(
    method: str,
    host: str,
    path: str,
    query: Mapping[str, str],
    credentials: Credentials,
    region: str,
    when: datetime,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The headers of a request without a body, signed; `path` and `query` are not yet quoted."""
    time = when.strftime("%Y%m%dT%H%M%SZ")
    headers = {
        **(extra or {}),
        "host": host,
        "x-amz-content-sha256": EMPTY_SHA256,
        "x-amz-date": time,
    }
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
    canonical = "\n".join(
        [method, quoted_path(path), query_string(query), *lines, "", names, EMPTY_SHA256]
    )
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join([ALGORITHM, time, scope, digest])
    signature = _mac(_key(credentials.secret_key, scope), text).hex()
    headers["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _key(secret_key: str, scope: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = _mac(key, part)
    return key


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
