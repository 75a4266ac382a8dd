"""Opens the object stores of the configuration, and describes them to other processes.

`storage.cloud` configures the default store, `storage.stores` the named ones. A description has no
secrets; another process opens the store from it, with credentials of its own. No error message
contains a secret. Clients of remote stores are large and are imported only when they are used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.config import CloudSection
from penstock.formats.plan_api import StoreReply
from penstock.model.errors import ConfigError, ResourceUnknown
from penstock.objects.fs import FileStore
from penstock.objects.interface import PREFIX_BYTES_MAX, KeyInvalid, ObjectStore, check_key
from penstock.objects.memory import MemoryStore

if TYPE_CHECKING:
    from penstock.objects.calls import CallLimits
    from penstock.objects.remote import RemoteStore, Uploads

from penstock.config import AzblobSection, GcsSection, S3Section


class Stores:
    """The stores of a configuration by name, each opened at its first use; needs an event loop."""

    def __init__(
        self, default: CloudSection, named: Mapping[str, CloudSection], data: Path
    ) -> None:
        self._settings = {"": default, **named}
        self._data = data
        self._open: dict[CloudSection, ObjectStore] = {}

    def get(self, name: str) -> ObjectStore:
        """The store of this name; empty for the default store.

        Names with equal settings share a client. Raises ResourceUnknown, ConfigError.
        """
        settings = self._named(name)
        if settings not in self._open:
            self._open[settings] = open_store(settings, self._data)
        return self._open[settings]

    def described(self, name: str) -> StoreReply:
        """The description of the store of this name; raises ResourceUnknown."""
        return describe(self._named(name), self._data)

    def _named(self, name: str) -> CloudSection:
        settings = self._settings.get(name)
        if settings is None:
            raise ResourceUnknown("object store", name)
        return settings

    async def close(self) -> None:
        for store in self._open.values():
            await store.close()
        self._open.clear()


DIRECTORY: Final = "objects"
"""Default directory of objects in the data directory."""

METADATA_SECONDS: Final = 2.0
"""Timeout of services that provide credentials; most machines have none."""

_SCHEMES: Final = {"s3": ("s3",), "gcs": ("gs", "gcs"), "azblob": ("az", "azblob")}
_URL: Final = re.compile(r"([a-z0-9]+)://([^/]*)/?(.*)")
_REGION: Final = "us-east-1"
"""Region for services other than AWS that have no regions."""


class BucketPrefix(NamedTuple):
    """A bucket or container and the prefix of keys in it, which is empty or ends with a slash."""

    bucket: str
    prefix: str


def open_store(cloud: CloudSection, data: Path) -> ObjectStore:
    """Open the store of these settings without calling it; needs an event loop.

    Raises ConfigError.
    """
    if cloud.backend in ("fs", "local"):
        return FileStore(_directory(cloud, data))
    if cloud.backend == "memory":
        return MemoryStore()
    return _remote(cloud)


def _directory(cloud: CloudSection, data: Path) -> Path:
    if "://" in cloud.root:
        raise ConfigError(f"storage.cloud.root must be a path with backend {cloud.backend}")
    return Path(cloud.root) if cloud.root else data / DIRECTORY


def _remote(cloud: CloudSection) -> RemoteStore:
    from opendal import AsyncOperator
    from opendal.exceptions import ConfigInvalid

    from penstock.objects.calls import CallLimits
    from penstock.objects.remote import RemoteStore
    from penstock.objects.transfer import TransferLimits

    calls = CallLimits(
        request_seconds=float(cloud.request_timeout_seconds),
        retries_max=cloud.retries_max,
        call_seconds=float(cloud.call_timeout_seconds),
    )
    transfer = TransferLimits(cloud.part_bytes, cloud.parts_in_flight, cloud.bytes_per_second_max)
    options, uploads = _OPTIONS[cloud.backend](cloud, calls)
    try:
        operator = AsyncOperator(cloud.backend, **options)
    except ConfigInvalid as error:
        reason = str(error).partition("=> ")[2].partition("\n")[0]
        raise ConfigError(f"storage.cloud does not fit backend {cloud.backend}: {reason}") from None
    return RemoteStore(cloud.backend, operator, calls, transfer, uploads)


def _s3(cloud: CloudSection, calls: CallLimits) -> tuple[dict[str, str], Uploads]:
    from penstock.objects.s3_credentials import FoundKeys, GivenKeys
    from penstock.objects.s3_requests import Exchanges, S3Credentials
    from penstock.objects.s3_uploads import S3Bucket, S3Uploads

    s3, place = cloud.s3, _place(cloud, "")
    _check_s3(cloud)
    region = s3.region or _REGION
    endpoint = s3.endpoint or f"https://s3.{region}.amazonaws.com"
    options = {
        "bucket": place.bucket,
        "root": f"/{place.prefix}",
        "region": region,
        "endpoint": endpoint,
        "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key,
        "session_token": s3.session_token,
        "enable_virtual_host_style": "true" if s3.addressing == "host" else "",
        "checksum_algorithm": "crc32c",
    }
    if s3.server_side_encryption != "none":
        options["server_side_encryption"] = s3.server_side_encryption
        options["server_side_encryption_aws_kms_key_id"] = s3.sse_kms_key_id
    if s3.access_key:
        options["disable_config_load"] = options["disable_ec2_metadata"] = "true"
    keys = (
        GivenKeys(S3Credentials(s3.access_key, s3.secret_key, s3.session_token))
        if s3.access_key
        else FoundKeys(os.environ, Exchanges(calls._replace(request_seconds=METADATA_SECONDS)))
    )
    bucket = S3Bucket(endpoint, place.bucket, place.prefix, region, s3.addressing == "path")
    return _set(options), S3Uploads(bucket, keys, Exchanges(calls))


def _gcs(cloud: CloudSection, calls: CallLimits) -> tuple[dict[str, str], None]:
    place = _place(cloud, cloud.gcs.bucket)
    _check_endpoint("gcs", cloud.gcs.endpoint)
    file = cloud.gcs.credential_file
    anonymous = cloud.gcs.access == "anonymous"
    if file and anonymous:
        raise ConfigError("storage.cloud.gcs.credential_file is of no use with access anonymous")
    if file:
        _check_credential_file(file)
    options = {
        "bucket": place.bucket,
        "root": f"/{place.prefix}",
        "credential_path": file,
        "endpoint": cloud.gcs.endpoint.rstrip("/"),
        "skip_signature": "true" if anonymous else "",
    }
    return _set(options), None


def _azblob(cloud: CloudSection, calls: CallLimits) -> tuple[dict[str, str], None]:
    azblob, place = cloud.azblob, _place(cloud, cloud.azblob.container)
    _check_endpoint("azblob", azblob.endpoint)
    if not azblob.account and not azblob.endpoint:
        raise ConfigError("backend azblob needs storage.cloud.azblob.account or .endpoint")
    options = {
        "container": place.bucket,
        "root": f"/{place.prefix}",
        "account_name": azblob.account,
        "account_key": azblob.key,
        "endpoint": azblob.endpoint or f"https://{azblob.account}.blob.core.windows.net",
    }
    return _set(options), None


def _check_credential_file(file: str) -> None:
    """Raise ConfigError for an invalid key file, which the client would report as unavailable."""
    try:
        document = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise ConfigError(f"storage.cloud.gcs.credential_file {file}: {error.strerror}") from error
    except ValueError:
        document = None
    if not isinstance(document, dict) or "type" not in document:
        raise ConfigError(
            f"storage.cloud.gcs.credential_file {file} is no key file: JSON with a type is expected"
        )


_OPTIONS: Final = {"s3": _s3, "gcs": _gcs, "azblob": _azblob}


def _place(cloud: CloudSection, named: str) -> BucketPrefix:
    """Bucket and prefix of the root; the root may omit a bucket that is `named` elsewhere."""
    schemes = _SCHEMES[cloud.backend]
    match = _URL.fullmatch(cloud.root)
    if match is None and (cloud.root == "" or named):
        bucket, prefix = named, cloud.root
    elif match is not None and match[1] in schemes:
        bucket, prefix = match[2] or named, match[3]
    else:
        raise ConfigError(
            f"storage.cloud.root must look like {schemes[0]}://BUCKET/PREFIX with backend "
            f"{cloud.backend}"
        )
    if not bucket:
        raise ConfigError(f"backend {cloud.backend} needs a bucket: storage.cloud.root is empty")
    if named and bucket != named:
        raise ConfigError(f"storage.cloud names two buckets: {bucket} in root, and {named}")
    return BucketPrefix(bucket, _prefix(prefix))


def _prefix(text: str) -> str:
    prefix = text.strip("/")
    if not prefix:
        return ""
    try:
        check_key(prefix)
    except KeyInvalid as error:
        raise ConfigError(f"storage.cloud.root has a bad prefix: {error.reason}") from None
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise ConfigError(f"storage.cloud.root has a prefix over {PREFIX_BYTES_MAX} bytes")
    return f"{prefix}/"


def _check_s3(cloud: CloudSection) -> None:
    s3 = cloud.s3
    _check_endpoint("s3", s3.endpoint)
    if not s3.region and not s3.endpoint:
        raise ConfigError("backend s3 needs storage.cloud.s3.region, or an endpoint")
    if bool(s3.access_key) != bool(s3.secret_key):
        raise ConfigError("storage.cloud.s3.access_key and secret_key go together")
    if s3.session_token and not s3.access_key:
        raise ConfigError("storage.cloud.s3.session_token needs access_key and secret_key")
    if s3.sse_kms_key_id and s3.server_side_encryption != "aws:kms":
        raise ConfigError("storage.cloud.s3.sse_kms_key_id needs server_side_encryption aws:kms")


def _check_endpoint(section: str, endpoint: str) -> None:
    if not endpoint:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ConfigError(f"storage.cloud.{section}.endpoint must look like https://HOST[:PORT]")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"storage.cloud.{section}.endpoint must not hold a user or password")


def _set(options: dict[str, str]) -> dict[str, str]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value}


CREDENTIALS: Final = (
    "access_key",
    "secret_key",
    "session_token",
    "account_key",
    "credential_file",
    "endpoint",
)
"""Options for opening a described store; without them, credentials of the environment are used."""


def describe(cloud: CloudSection, data: Path) -> StoreReply:
    """The description of the store of these settings, without secrets."""
    if cloud.backend in ("fs", "local"):
        return StoreReply(
            "fs", str((Path(cloud.root) if cloud.root else data / DIRECTORY).absolute())
        )
    if cloud.backend == "s3":
        s3 = cloud.s3
        return StoreReply("s3", cloud.root, s3.endpoint, s3.region, s3.addressing)
    if cloud.backend == "gcs":
        gcs, root = cloud.gcs, _url("gs", cloud.gcs.bucket, cloud.root)
        access = gcs.access if gcs.access == "anonymous" else ""
        return StoreReply("gcs", root, gcs.endpoint, access=access)
    if cloud.backend == "azblob":
        azblob = cloud.azblob
        root = _url("az", azblob.container, cloud.root)
        return StoreReply("azblob", root, azblob.endpoint, account=azblob.account)
    return StoreReply(cloud.backend)


def open_described(description: StoreReply, credentials: Mapping[str, str]) -> ObjectStore:
    """Open a described store with these credentials; needs an event loop.

    Raises ConfigError.
    """
    return open_store(configured(description, credentials), Path())


def configured(description: StoreReply, credentials: Mapping[str, str]) -> CloudSection:
    """The settings of a described store with these credentials; raises ConfigError."""
    if unknown := credentials.keys() - set(CREDENTIALS):
        known = ", ".join(CREDENTIALS)
        raise ConfigError(f"no such credential: {', '.join(sorted(unknown))}; known: {known}")
    if description.backend == "memory":
        raise ConfigError("a bucket in the memory of the broker can be read through it only")
    get, endpoint = credentials.get, credentials.get("endpoint") or description.endpoint
    key_file = get("credential_file", "")
    return CloudSection(
        backend=description.backend,
        root=description.root,
        s3=S3Section(
            region=description.region,
            endpoint=endpoint,
            access_key=get("access_key", ""),
            secret_key=get("secret_key", ""),
            session_token=get("session_token", ""),
            addressing=description.addressing or "path",
        ),
        gcs=GcsSection(
            credential_file=key_file,
            endpoint=endpoint,
            access="signed" if key_file else description.access or "signed",
        ),
        azblob=AzblobSection(
            account=description.account, key=get("account_key", ""), endpoint=endpoint
        ),
    )


def _url(scheme: str, bucket: str, root: str) -> str:
    return root if "://" in root else f"{scheme}://{bucket}/{root}".rstrip("/")
