"""The settings of storage: the WAL, uploads, object stores and metadata.

Every setting has its default, range and help text; sections are nested as in the YAML file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.config.rules import DAY_SECONDS, GIB, KIB, MIB, TIB, section, setting


@dataclass(frozen=True, slots=True)
class WalRetentionSection:
    """How much of the WAL stays on the local disk after it was uploaded."""

    min_minutes: int = setting(60, "keep WAL files at least this long", 0, 5_256_000)
    min_bytes: int = setting(
        100 * GIB, "keep at least this much of each topic's WAL", 0, 1024 * TIB
    )
    max_bytes: int = setting(
        TIB, "delete the oldest WAL files of a topic beyond this, even unread ones", 0, 1024 * TIB
    )


@dataclass(frozen=True, slots=True)
class WalCacheSection:
    """The tail cache: recent batches in memory."""

    max_bytes: int = setting(256 * MIB, "tail cache of the whole broker", 0, TIB)
    max_seconds: int = setting(600, "evict batches of this age from the tail cache", 0, DAY_SECONDS)


@dataclass(frozen=True, slots=True)
class WalIndexSection:
    """The subject index of active WAL files."""

    max_bytes: int = setting(
        128 * MIB, "memory for subjects of active WAL files, whole broker", MIB, TIB
    )


@dataclass(frozen=True, slots=True)
class WalSection:
    """The write-ahead log on the local disk."""

    dir: str = setting("", "directory of the WAL (empty = `wal` in the data directory)")
    fsync_interval_ms: int = setting(
        0, "extra delay before a sync, to group commits (0 = none)", 0, 10_000
    )
    max_batch_bytes: int = setting(4 * MIB, "largest body of a frame", 4 * KIB, 128 * MIB)
    max_file_bytes: int = setting(
        64 * MIB, "size at which a new WAL file starts", 4 * KIB, 16 * GIB
    )
    max_file_seconds: int = setting(3600, "age at which a new WAL file starts", 1, 7 * DAY_SECONDS)
    pending_bytes_max: int = setting(
        64 * MIB, "unsynced bytes that one topic may queue", 4 * KIB, 16 * GIB
    )
    when_full: str = setting("wait", "back-pressure when that queue is full", choices="wait refuse")
    reserve_bytes: int = setting(
        4 * MIB, "disk space reserved for deletes when the disk is full", 0, GIB
    )
    max_open_files: int = setting(
        512, "active WAL files kept open; others are opened for each write", 1, 1_000_000
    )
    retention: WalRetentionSection = section(WalRetentionSection)
    cache: WalCacheSection = section(WalCacheSection)
    index: WalIndexSection = section(WalIndexSection)


@dataclass(frozen=True, slots=True)
class RotationSection:
    """When to stop merging small objects."""

    max_object_bytes: int = setting(128 * MIB, "largest object that a merge writes", MIB, 5 * GIB)
    max_object_seconds: int = setting(
        300, "merge smaller groups of objects after this long without an upload", 1, DAY_SECONDS
    )


@dataclass(frozen=True, slots=True)
class UploaderSection:
    """Uploads from the WAL to the bucket."""

    interval_seconds: int = setting(10, "interval between uploads of new messages", 1, DAY_SECONDS)
    max_batch_bytes: int = setting(
        8 * MIB, "upload early when this much is new (checked about once a second)", 64 * KIB, GIB
    )
    linger_ms: int = setting(
        250, "interval between uploads of topics with durability `cloud`", 1, 60_000
    )
    uploads_at_once: int = setting(4, "maximum concurrent uploads", 1, 64)
    max_lag_bytes: int = setting(
        8 * GIB, "bytes waiting for upload at which `when_behind` applies", MIB, TIB
    )
    when_behind: str = setting(
        "none",
        "back-pressure policy for producers when uploads are behind",
        choices="none slow refuse",
    )
    trash_seconds: int = setting(
        3600, "grace time before replaced objects are deleted", 0, 30 * DAY_SECONDS
    )
    rotation: RotationSection = section(RotationSection)


@dataclass(frozen=True, slots=True)
class S3Section:
    """Access to an S3 bucket."""

    region: str = setting("", "region of the bucket")
    endpoint: str = setting("", "URL of the service (empty = AWS in that region)")
    access_key: str = setting(
        "", "access key id (empty = credentials of the environment)", secret=True
    )
    secret_key: str = setting("", "secret access key", secret=True)
    session_token: str = setting("", "session token of temporary credentials", secret=True)
    addressing: str = setting(
        "path", "where URLs name the bucket: in the path or in the host name", choices="path host"
    )
    server_side_encryption: str = setting(
        "none", "server-side encryption", choices="none AES256 aws:kms"
    )
    sse_kms_key_id: str = setting("", "KMS key for `aws:kms` (empty = the account's default key)")


@dataclass(frozen=True, slots=True)
class GcsSection:
    """Access to a Google Cloud Storage bucket."""

    bucket: str = setting("", "name of the bucket")
    credential_file: str = setting(
        "", "service account key file (empty = credentials of the environment)"
    )
    endpoint: str = setting("", "URL of the service (empty = Google)")
    access: str = setting(
        "signed",
        "sign requests, or send them without credentials to an emulator",
        choices="signed anonymous",
    )


@dataclass(frozen=True, slots=True)
class AzblobSection:
    """Access to an Azure Blob Storage container."""

    account: str = setting("", "name of the storage account")
    key: str = setting("", "account key (empty = credentials of the environment)", secret=True)
    container: str = setting("", "name of the container")
    endpoint: str = setting("", "URL of the service (empty = the account's)")


@dataclass(frozen=True, slots=True)
class CloudSection:
    """One object store."""

    backend: str = setting(
        "fs",
        "kind of object store; `local` is an alias of `fs`",
        choices="s3 gcs azblob fs local memory",
    )
    root: str = setting(
        "", "bucket and prefix, or a directory (empty = `objects` in the data directory)"
    )
    request_timeout_seconds: int = setting(30, "timeout of one request", 1, 3600)
    call_timeout_seconds: int = setting(
        120, "timeout of one operation with all its retries", 1, 86_400
    )
    retries_max: int = setting(5, "retries of a failed request, with exponential backoff", 0, 100)
    part_bytes: int = setting(
        8 * MIB, "part size; larger objects are uploaded in parts", 5 * MIB, GIB
    )
    parts_in_flight: int = setting(4, "maximum concurrent parts of one object", 1, 64)
    bytes_per_second_max: int = setting(0, "rate limit of all uploads together (0 = none)", 0, TIB)
    s3: S3Section = section(S3Section)
    gcs: GcsSection = section(GcsSection)
    azblob: AzblobSection = section(AzblobSection)


@dataclass(frozen=True, slots=True)
class EtcdSection:
    """Metadata shared by several brokers."""

    endpoints: tuple[str, ...] = setting((), "URLs of etcd (empty = embedded SQLite)")
    namespace: str = setting("/penstock", "prefix of every key")
    user: str = setting("", "etcd user (empty = no authentication)")
    password: str = setting("", "password of the user", secret=True)
    ca_file: str = setting("", "PEM file of the CA of etcd's certificate (empty = system CAs)")
    cert_file: str = setting("", "PEM file of the client certificate")
    key_file: str = setting("", "PEM file of the client certificate's private key")
    call_timeout_seconds: int = setting(5, "timeout of one request", 1, 300)
    lease_seconds: int = setting(
        10, "lease time; a broker silent for longer loses its topics", 1, 3600
    )
    lease_margin_ms: int = setting(
        2000, "stop acks this long before the lease may expire; less than half of it", 1, 1_800_000
    )
    stall_limit_seconds: int = setting(
        60, "give up the lease when the event loop is stalled this long", 1, 3600
    )


@dataclass(frozen=True, slots=True)
class ProgressSection:
    """How often positions of consumers are saved."""

    flush_interval_seconds: int = setting(
        5, "longest time between saves of changed consumer positions", 1, 3600
    )
    min_offset_delta: int = setting(
        1000, "save a consumer position early when it moved this far", 1, 1_000_000_000
    )


@dataclass(frozen=True, slots=True)
class StorageSection:
    """Where messages are stored."""

    mode: str = setting(
        "local_only",
        "where messages are stored: WAL and bucket, local directories, or memory",
        choices="wal_cloud local_only memory",
    )
    wal: WalSection = section(WalSection)
    uploader: UploaderSection = section(UploaderSection)
    cloud: CloudSection = section(CloudSection)
    stores: Mapping[str, CloudSection] = field(default_factory=dict)
    """More object stores by name, each with the settings of `cloud`."""
    etcd: EtcdSection = section(EtcdSection)
    progress: ProgressSection = section(ProgressSection)
