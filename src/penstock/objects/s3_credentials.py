"""Credentials for signing requests to S3, from the configuration or from the environment.

Without configured keys, the sources that AWS documents are tried in its order: environment
variables, a web identity (Kubernetes), the profile file, the container's agent, the instance
metadata. opendal uses these sources for its own requests; this module serves requests that Penstock
signs itself.
"""

from __future__ import annotations

import asyncio
import configparser
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from penstock.objects.s3_requests import Exchanges, NoReply, S3Credentials, query_string

REFRESH_EARLY: Final = timedelta(minutes=5)
"""Keys that expire within this time are fetched again."""

CONTAINER_URL: Final = "http://169.254.170.2"
MACHINE_URL: Final = "http://169.254.169.254/latest"
_STS: Final = "{https://sts.amazonaws.com/doc/2011-06-15/}"

Expiring = tuple[S3Credentials, datetime | None]


class GivenKeys:
    """Keys of the configuration."""

    def __init__(self, credentials: S3Credentials) -> None:
        self._credentials = credentials

    async def find(self) -> S3Credentials | None:
        return self._credentials

    async def close(self) -> None: ...


class FoundKeys:
    """Keys of the environment, fetched when they are needed and again before they expire."""

    def __init__(self, environ: Mapping[str, str], exchanges: Exchanges) -> None:
        self._environ = environ
        self._exchanges = exchanges
        self._held: Expiring | None = None
        self._turn = asyncio.Lock()

    async def find(self) -> S3Credentials | None:
        """Keys that are valid for some minutes at least; None if no source has any."""
        async with self._turn:
            if self._held is None or _expires_soon(self._held):
                self._held = await self._search()
            return None if self._held is None else self._held[0]

    async def close(self) -> None:
        await self._exchanges.close()

    async def _search(self) -> Expiring | None:
        sources: list[Callable[[], Awaitable[Expiring | None]]] = [
            self._from_environment,
            self._from_web_identity,
            self._from_profile,
            self._from_container,
            self._from_machine,
        ]
        for source in sources:
            try:
                keys = await source()
            except (NoReply, OSError, KeyError, ValueError, ElementTree.ParseError):
                continue  # this source has no keys
            if keys is not None:
                return keys
        return None

    async def _from_environment(self) -> Expiring | None:
        get = self._environ.get
        access, secret = get("AWS_ACCESS_KEY_ID", ""), get("AWS_SECRET_ACCESS_KEY", "")
        if not (access and secret):
            return None
        return S3Credentials(access, secret, get("AWS_SESSION_TOKEN", "")), None

    async def _from_profile(self) -> Expiring | None:
        home = Path(self._environ.get("HOME", "/nonexistent"))
        file = self._environ.get("AWS_SHARED_CREDENTIALS_FILE", home / ".aws" / "credentials")
        profile = self._environ.get("AWS_PROFILE", "default")
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(await asyncio.to_thread(Path(file).read_text))
        if not parser.has_section(profile):
            return None
        keys = parser[profile]
        token = keys.get("aws_session_token", "")
        return S3Credentials(keys["aws_access_key_id"], keys["aws_secret_access_key"], token), None

    async def _from_web_identity(self) -> Expiring | None:
        file = self._environ["AWS_WEB_IDENTITY_TOKEN_FILE"]
        region = self._environ.get("AWS_REGION", self._environ.get("AWS_DEFAULT_REGION"))
        host = f"sts.{region}.amazonaws.com" if region else "sts.amazonaws.com"
        query = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": self._environ["AWS_ROLE_ARN"],
            "RoleSessionName": self._environ.get("AWS_ROLE_SESSION_NAME", "penstock"),
            "WebIdentityToken": (await asyncio.to_thread(Path(file).read_text)).strip(),
        }
        url = self._environ.get("AWS_ENDPOINT_URL_STS", f"https://{host}").rstrip("/")
        body = await self._fetch("GET", f"{url}/?{query_string(query)}", {})
        # The reply of AWS over TLS; expat refuses documents that expand.
        found = ElementTree.fromstring(body).find(f".//{_STS}Credentials")  # noqa: S314
        if found is None:
            return None
        texts = {item.tag.removeprefix(_STS): item.text or "" for item in found}
        keys = (texts["AccessKeyId"], texts["SecretAccessKey"], texts["SessionToken"])
        return S3Credentials(*keys), datetime.fromisoformat(texts["Expiration"])

    async def _from_container(self) -> Expiring | None:
        get = self._environ.get
        relative = get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        url = CONTAINER_URL + relative if relative else get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if not url:
            return None
        token = get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = (await asyncio.to_thread(Path(file).read_text)).strip()
        headers = {"authorization": token} if token else {}
        return _from_json(await self._fetch("GET", url, headers))

    async def _from_machine(self) -> Expiring | None:
        if self._environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            return None
        base = self._environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        latest = f"{base.rstrip('/')}/latest" if base else MACHINE_URL
        lifetime = {"x-aws-ec2-metadata-token-ttl-seconds": "300"}
        token = await self._fetch("PUT", f"{latest}/api/token", lifetime)
        headers = {"x-aws-ec2-metadata-token": token.decode()}
        path = f"{latest}/meta-data/iam/security-credentials/"
        role = (await self._fetch("GET", path, headers)).decode().split("\n")[0]
        return _from_json(await self._fetch("GET", path + role, headers))

    async def _fetch(self, method: str, url: str, headers: Mapping[str, str]) -> bytes:
        reply = await self._exchanges.ask(method, url, headers, retries_max=1)
        if reply.status != 200:
            raise NoReply(f"status {reply.status}")
        return reply.body


def _from_json(body: bytes) -> Expiring:
    found: dict[str, Any] = json.loads(body)
    keys = (found["AccessKeyId"], found["SecretAccessKey"], found.get("Token", ""))
    return S3Credentials(*keys), datetime.fromisoformat(found["Expiration"])


def _expires_soon(held: Expiring) -> bool:
    return held[1] is not None and held[1] - datetime.now(UTC) < REFRESH_EARLY
