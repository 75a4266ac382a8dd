"""Every setting: name, default, meaning and range in one line, nested as in the YAML file."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, cast

from penstock.config.rules import Address, Setting, section, setting

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class WalRetention:
    """How much of the local log stays when it is also in the bucket."""

    min_minutes: int = setting(60, "keep WAL files at least this long", 0, 5_256_000)
    min_bytes: int = setting(100 * GIB, "keep at least this much of a topic's WAL", 0, 1024 * TIB)
    max_bytes: int = setting(TIB, "beyond this, files go though a reader needs them", 0, 1024 * TIB)


@dataclass(frozen=True, slots=True)
class WalCache:
    """Recent batches in memory."""

    max_bytes: int = setting(256 * MIB, "memory for recent batches, broker-wide", 0, TIB)
    max_seconds: int = setting(600, "a batch leaves the cache at this age", 0, DAY_SECONDS)


@dataclass(frozen=True, slots=True)
class WalIndex:
    """The subject index of the files being written."""

    max_bytes: int = setting(
        128 * MIB, "memory for subjects of active files, broker-wide", MIB, TIB
    )


@dataclass(frozen=True, slots=True)
class Wal:
    """The log on local disk."""

    dir: str = setting("", "directory of the logs; empty means `wal` in the data directory")
    fsync_interval_ms: int = setting(0, "longest extra wait before a sync; 0 is none", 0, 10_000)
    max_batch_bytes: int = setting(4 * MIB, "largest body of one frame", 4 * KIB, 128 * MIB)
    max_file_bytes: int = setting(64 * MIB, "a new file starts at this size", 4 * KIB, 16 * GIB)
    max_file_seconds: int = setting(3600, "a new file starts at this age", 1, 7 * DAY_SECONDS)
    pending_bytes_max: int = setting(
        64 * MIB, "a topic's bytes waiting for disk", 4 * KIB, 16 * GIB
    )
    when_full: str = setting("wait", "an append when that queue is full", choices="wait refuse")
    reserve_bytes: int = setting(4 * MIB, "kept back for deletes on a full disk", 0, GIB)
    retention: WalRetention = section(WalRetention)
    cache: WalCache = section(WalCache)
    index: WalIndex = section(WalIndex)


@dataclass(frozen=True, slots=True)
class Rotation:
    """When small objects have been merged far enough."""

    max_object_bytes: int = setting(128 * MIB, "largest object merging makes", MIB, 5 * GIB)
    max_object_seconds: int = setting(
        300, "without an upload for this long, fewer small objects are merged", 1, DAY_SECONDS
    )


@dataclass(frozen=True, slots=True)
class Uploader:
    """From the local log to the bucket."""

    interval_seconds: int = setting(10, "upload what is new this often", 1, DAY_SECONDS)
    max_batch_bytes: int = setting(
        8 * MIB, "upload once this much is new, about once a second", 64 * KIB, GIB
    )
    linger_ms: int = setting(250, "the same for topics whose acks wait for the bucket", 1, 60_000)
    uploads_at_once: int = setting(4, "topics that upload at the same time", 1, 64)
    max_lag_bytes: int = setting(8 * GIB, "not uploaded, from which on when_behind holds", MIB, TIB)
    when_behind: str = setting("none", "what producers then meet", choices="none slow refuse")
    trash_seconds: int = setting(3600, "replaced objects stay this long", 0, 30 * DAY_SECONDS)
    rotation: Rotation = section(Rotation)


@dataclass(frozen=True, slots=True)
class S3:
    """Access to an S3 bucket."""

    region: str = setting("", "region of the bucket")
    endpoint: str = setting("", "address of the service; empty means the region's own")
    access_key: str = setting("", "access key id; empty means what the machine has", secret=True)
    secret_key: str = setting("", "secret access key", secret=True)
    session_token: str = setting("", "token that goes with temporary keys", secret=True)
    addressing: str = setting("path", "where the bucket's name stands", choices="path host")
    server_side_encryption: str = setting(
        "none", "encryption by the store", choices="none AES256 aws:kms"
    )
    sse_kms_key_id: str = setting("", "key for aws:kms; empty means the account's own")


@dataclass(frozen=True, slots=True)
class Gcs:
    """Access to a Google Cloud Storage bucket."""

    bucket: str = setting("", "name of the bucket")
    credential_file: str = setting("", "the account's key file; empty means what the machine has")
    endpoint: str = setting("", "address of the service; empty means Google's own")
    access: str = setting(
        "signed", "with credentials, or without for an emulator", choices="signed anonymous"
    )


@dataclass(frozen=True, slots=True)
class Azblob:
    """Access to an Azure Blob Storage container."""

    account: str = setting("", "name of the storage account")
    key: str = setting("", "the account's key; empty means what the machine has", secret=True)
    container: str = setting("", "name of the container")
    endpoint: str = setting("", "address of the service; empty means the account's own")


@dataclass(frozen=True, slots=True)
class Cloud:
    """The object store."""

    backend: str = setting(
        "fs", "object store; local is fs", choices="s3 gcs azblob fs local memory"
    )
    root: str = setting("", "bucket and prefix; empty means `objects` in the data directory")
    request_timeout_seconds: int = setting(30, "longest wait for one reply", 1, 3600)
    call_timeout_seconds: int = setting(120, "longest time for a step, retries and all", 1, 86_400)
    retries_max: int = setting(5, "attempts after the first, ever further apart", 0, 100)
    part_bytes: int = setting(8 * MIB, "larger objects go in parts of this", 5 * MIB, GIB)
    parts_in_flight: int = setting(4, "parts of an object on their way at a time", 1, 64)
    bytes_per_second_max: int = setting(0, "limit of all uploads; 0 is none", 0, TIB)
    s3: S3 = section(S3)
    gcs: Gcs = section(Gcs)
    azblob: Azblob = section(Azblob)


@dataclass(frozen=True, slots=True)
class Etcd:
    """Metadata shared by several brokers."""

    endpoints: tuple[str, ...] = setting((), "addresses of etcd; none means embedded metadata")
    namespace: str = setting("/penstock", "prefix of every key")
    user: str = setting("", "who to log in as; empty means nobody")
    password: str = setting("", "the user's password", secret=True)
    ca_file: str = setting("", "PEM file of who signed etcd's certificate; empty: the machine's")
    cert_file: str = setting("", "PEM file of the certificate that etcd asks of us")
    key_file: str = setting("", "PEM file of the private key that goes with it")
    call_timeout_seconds: int = setting(5, "longest wait for one reply", 1, 300)
    lease_seconds: int = setting(10, "a broker that is silent this long loses its topics", 1, 3600)
    lease_margin_ms: int = setting(
        2000, "acks stop this long before the lease may end; below half of it", 1, 1_800_000
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """How often the positions of subscriptions are saved."""

    flush_interval_seconds: int = setting(5, "save positions at least this often", 1, 3600)
    min_offset_delta: int = setting(1000, "save when a position moved this far", 1, 1_000_000_000)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where messages live."""

    mode: str = setting("local_only", "tiers in use", choices="wal_cloud local_only memory")
    wal: Wal = section(Wal)
    uploader: Uploader = section(Uploader)
    cloud: Cloud = section(Cloud)
    stores: Mapping[str, Cloud] = field(default_factory=dict)
    """Further object stores, by name; each has the settings of `cloud`."""
    etcd: Etcd = section(Etcd)
    progress: Progress = section(Progress)


@dataclass(frozen=True, slots=True)
class Http:
    """The HTTP door."""

    listen: Address = setting(Address("127.0.0.1", 8080), "address; port 0 takes a free one")
    max_body_bytes: int = setting(64 * MIB, "largest body of a request", KIB, 2 * GIB)
    max_pending_bytes: int = setting(512 * MIB, "bodies at the same time; more: 429", KIB, TIB)


@dataclass(frozen=True, slots=True)
class Grpc:
    """The gRPC door."""

    listen: Address = setting(Address("127.0.0.1", 7777), "address; port 0 takes a free one")
    max_calls: int = setting(10_000, "calls at the same time; more are refused", 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class Nats:
    """The NATS door."""

    listen: Address = setting(Address("127.0.0.1", 4222), "address; port 0 takes a free one")
    max_connections: int = setting(65_536, "clients at the same time", 1, 1_000_000)
    max_payload_bytes: int = setting(MIB, "largest message, headers included", KIB, 64 * MIB)
    max_pending_bytes: int = setting(64 * MIB, "unread output; beyond it: cut off", MIB, 16 * GIB)
    max_subscriptions: int = setting(1_000_000, "of one client", 1, 100_000_000)
    ping_interval_seconds: int = setting(120, "how often clients are asked for a sign", 1, 86_400)
    max_pings_out: int = setting(2, "a client that leaves so many unanswered goes", 1, 1000)
    token: str = setting("", "what clients must tell to connect; empty: nothing", secret=True)
    user: str = setting("", "who may connect; empty: anyone, or whoever has the token")
    password: str = setting("", "the user's password", secret=True)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetching, through whatever door."""

    max_running: int = setting(10_000, "fetches at the same time; more are refused", 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class ChannelPush:
    """Jobs that are pushed to callbacks."""

    workers: int = setting(200, "calls at the same time", 1, 10_000)
    concurrency: int = setting(16, "calls to one consumer, unless it has its own limit", 1, 10_000)
    timeout_ms: int = setting(30_000, "longest call", 1, 3_600_000)
    max_retries: int = setting(5, "attempts after the first; then the job is dead", 0, 255)
    backoff_seconds: tuple[str, ...] = setting(
        ("5", "30", "60"), "before each retry; behind the last ever longer"
    )
    token_header: str = setting("X-Broker-Consumer-Token", "header with the consumer's token")
    user_agent: str = setting("Penstock", "what calls say they come from")
    allow_networks: tuple[str, ...] = setting(
        (), "addresses, such as 10.0.0.0/8, open to callbacks though they are not public"
    )
    disable_after_seconds: int = setting(
        5 * DAY_SECONDS, "a consumer that takes nothing for so long is disabled; 0: never", 0, 2**31
    )
    secret_overlap_seconds: int = setting(
        DAY_SECONDS, "old secrets sign along for so long", 0, 2**31
    )


@dataclass(frozen=True, slots=True)
class ChannelSchedule:
    """Messages for later."""

    min_delay_seconds: int = setting(120, "soonest time ahead", 0, 2**31)
    max_bytes: int = setting(768 * KIB, "largest message for later", 1, 768 * KIB)


@dataclass(frozen=True, slots=True)
class ChannelGateway:
    """A gateway in front that signs requests of the channel API."""

    secrets: tuple[str, ...] = setting((), "its keys, base64; none: no signatures", secret=True)
    tolerance_seconds: int = setting(300, "how old or early a signature may be", 1, DAY_SECONDS)
    exempt_paths: tuple[str, ...] = setting(("/_status",), "paths that need no signature")


@dataclass(frozen=True, slots=True)
class Channels:
    """Webhooks: pushed with retries, or pulled as jobs."""

    rational_delay_ms: int = setting(
        2000, "a pulled job is taken back so long after push.timeout_ms", 0, 3_600_000
    )
    sealing_key: str = setting("", "tokens at rest are sealed with it; empty: not", secret=True)
    seed: str = setting("", "producers, channels and consumers to begin with, YAML", secret=True)
    push: ChannelPush = section(ChannelPush)
    schedule: ChannelSchedule = section(ChannelSchedule)
    gateway: ChannelGateway = section(ChannelGateway)


@dataclass(frozen=True, slots=True)
class Log:
    """What the broker tells about itself, on standard error."""

    level: str = setting("info", "least important event told", choices="debug info warning error")
    format: str = setting("json", "a JSON object a line, or for people", choices="json text")


@dataclass(frozen=True, slots=True)
class Shutdown:
    """How the broker stops."""

    drain_seconds: int = setting(10, "time for requests in hand to finish", 0, 3600)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set."""

    role: str = setting("all", "a broker, or a node that only fetches", choices="all fetch")
    metadata: Address = setting(
        Address("127.0.0.1", 7777), "gRPC address of the broker that a node asks"
    )
    data: str = setting("./data", "the data directory; one broker at a time")
    storage: Storage = section(Storage)
    http: Http = section(Http)
    grpc: Grpc = section(Grpc)
    nats: Nats = section(Nats)
    fetch: Fetch = section(Fetch)
    channels: Channels = section(Channels)
    log: Log = section(Log)
    shutdown: Shutdown = section(Shutdown)

    @property
    def wal_dir(self) -> Path:
        return Path(self.storage.wal.dir or Path(self.data) / "wal")


CLOUD: Final = "storage.cloud"
STORES: Final = "storage.stores"
_STORE: Final = re.compile(r"storage\.stores\.([a-z][a-z0-9_-]*)(?=\.|$)")


def _flatten(kind: Any, prefix: str = "") -> Iterator[Setting]:
    for item in fields(kind):
        if item.metadata:
            yield Setting(prefix + item.name, cast(type, item.type), item.default, **item.metadata)
        elif prefix + item.name != STORES:
            yield from _flatten(item.type, f"{prefix}{item.name}.")


STRUCTURED: Final = frozenset(["channels.seed"])
"""Settings that hold a YAML document: in a file it is nested, elsewhere it is text."""

SETTINGS: Final = {facts.key: facts for facts in _flatten(Config)}
"""Every setting by its full key, in the order of the classes above, but for those of stores."""


def store_name(key: str) -> str | None:
    """The store that a key is about."""
    match = _STORE.match(key)
    return None if match is None else match[1]


def pattern(key: str) -> str:
    """The key that a key is like: settings of a store are those of `storage.cloud`."""
    return _STORE.sub(CLOUD, key)


def store_settings(name: str) -> dict[str, Setting]:
    """Every setting of one store by its full key."""
    keys = {key: f"{STORES}.{name}{key.removeprefix(CLOUD)}" for key in SETTINGS}
    return {
        keys[key]: facts._replace(key=keys[key])
        for key, facts in SETTINGS.items()
        if key.startswith(f"{CLOUD}.")
    }


def all_settings(config: Config) -> dict[str, Setting]:
    """Every setting, also of the stores that this configuration names."""
    stores = [store_settings(name) for name in config.storage.stores]
    return {key: facts for settings in (SETTINGS, *stores) for key, facts in settings.items()}


def read_value(config: Config, key: str) -> object:
    """The value of one setting by its full key."""
    value: Any = config
    for part in key.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return cast(object, value)


def secrets(config: Config) -> list[str]:
    """Every secret that is set, so that whoever writes for people can leave it out."""
    settings = all_settings(config)
    values = (read_value(config, key) for key, facts in settings.items() if facts.secret)
    texts = (part for value in values for part in (value if type(value) is tuple else (value,)))
    return [str(text) for text in texts if text]
