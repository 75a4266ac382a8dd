"""A store from the configuration: what fits together, and one line about what does not.

Credentials go from the configuration to the store's client and nowhere else; no error names a
value that is a secret. The clients are imported only when they are used: they are large.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.config.settings import Cloud
from penstock.model.errors import ConfigError
from penstock.objects.fs import FileStore
from penstock.objects.interface import KeyInvalid, ObjectStore
from penstock.objects.keys import PREFIX_BYTES_MAX, check_key
from penstock.objects.memory import MemoryStore

if TYPE_CHECKING:
    from penstock.objects.calls import CallLimits
    from penstock.objects.remote import RemoteStore, Uploads

DIRECTORY: Final = "objects"
"""Where objects lie in the data directory, unless told otherwise."""

METADATA_SECONDS: Final = 2.0
"""How long a service that gives out credentials is waited for; most machines have none."""

_SCHEMES: Final = {"s3": ("s3",), "gcs": ("gs", "gcs"), "azblob": ("az", "azblob")}
_URL: Final = re.compile(r"([a-z0-9]+)://([^/]*)/?(.*)")
_REGION: Final = "us-east-1"
"""What services other than Amazon's take for a region when they have none."""


class Place(NamedTuple):
    """A bucket or container and the prefix in it, which is empty or ends with a slash."""

    bucket: str
    prefix: str


def open_store(cloud: Cloud, data: Path) -> ObjectStore:
    """The store that `storage.cloud` describes; nothing is asked of it yet.

    Call it where an event loop runs. Raises ConfigError.
    """
    if cloud.backend in ("fs", "local"):
        return FileStore(_directory(cloud, data))
    if cloud.backend == "memory":
        return MemoryStore()
    return _remote(cloud)


def _directory(cloud: Cloud, data: Path) -> Path:
    if "://" in cloud.root:
        raise ConfigError(f"storage.cloud.root must be a path with backend {cloud.backend}")
    return Path(cloud.root) if cloud.root else data / DIRECTORY


def _remote(cloud: Cloud) -> RemoteStore:
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


def _s3(cloud: Cloud, calls: CallLimits) -> tuple[dict[str, str], Uploads]:
    from penstock.objects.credentials import FoundKeys, GivenKeys
    from penstock.objects.exchanges import Exchanges
    from penstock.objects.signing import Credentials
    from penstock.objects.uploads import Bucket, S3Uploads

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
        GivenKeys(Credentials(s3.access_key, s3.secret_key, s3.session_token))
        if s3.access_key
        else FoundKeys(os.environ, Exchanges(calls._replace(request_seconds=METADATA_SECONDS)))
    )
    bucket = Bucket(endpoint, place.bucket, place.prefix, region, s3.addressing == "path")
    return _set(options), S3Uploads(bucket, keys, Exchanges(calls))


def _gcs(cloud: Cloud, calls: CallLimits) -> tuple[dict[str, str], None]:
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


def _azblob(cloud: Cloud, calls: CallLimits) -> tuple[dict[str, str], None]:
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
    """What the store would call unavailable, again and again."""
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


def _place(cloud: Cloud, named: str) -> Place:
    """Bucket and prefix from the root, which may leave out a bucket that is `named` elsewhere."""
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
    return Place(bucket, _prefix(prefix))


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


def _check_s3(cloud: Cloud) -> None:
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
    """Those that have a value."""
    return {name: value for name, value in options.items() if value}
