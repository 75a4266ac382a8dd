"""The whole configuration, and the settings of servers, channels and the process.

Every setting has its default, range and help text; sections are nested as in the YAML file.
"""

from dataclasses import dataclass
from pathlib import Path

from penstock.config.addresses import Address
from penstock.config.rules import (
    DAY_SECONDS,
    GIB,
    KIB,
    MIB,
    TIB,
    Addresses,
    section,
    setting,
)
from penstock.config.storage_settings import StorageSection


@dataclass(frozen=True, slots=True)
class HttpSection:
    """The HTTP server."""

    listen: Addresses = setting(
        (Address("127.0.0.1", 8080),),
        "addresses to listen on (port 0 = one free port for all of them)",
    )
    max_body_bytes: int = setting(64 * MIB, "largest request body", KIB, 2 * GIB)
    max_pending_bytes: int = setting(
        512 * MIB, "total size of request bodies in memory; more is refused with 429", KIB, TIB
    )
    max_head_bytes: int = setting(64 * KIB, "largest request head, and largest trailers", KIB, MIB)
    max_connections: int = setting(
        20_000, "maximum connections; more are refused with 503", 1, 1_000_000
    )
    head_timeout_seconds: int = setting(10, "timeout for receiving a request head", 1, 3600)
    idle_timeout_seconds: int = setting(75, "close connections idle for this long", 1, 86_400)
    stall_timeout_seconds: int = setting(
        30, "close connections whose body or reply makes no progress for this long", 1, 86_400
    )


@dataclass(frozen=True, slots=True)
class GrpcSection:
    """The gRPC server."""

    listen: Addresses = setting(
        (Address("127.0.0.1", 7777),),
        "addresses to listen on (port 0 = one free port for all of them)",
    )
    max_calls: int = setting(10_000, "maximum concurrent calls; more are refused", 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class NatsSection:
    """The NATS server."""

    listen: Addresses = setting(
        (Address("127.0.0.1", 4222),),
        "addresses to listen on (port 0 = one free port for all of them)",
    )
    max_connections: int = setting(65_536, "maximum connections", 1, 1_000_000)
    max_payload_bytes: int = setting(MIB, "largest message, headers included", KIB, 64 * MIB)
    max_pending_bytes: int = setting(
        64 * MIB,
        "output that a slow client may leave unread before it is disconnected",
        MIB,
        16 * GIB,
    )
    max_subscriptions: int = setting(
        1_000_000, "maximum subscriptions of one client", 1, 100_000_000
    )
    ping_interval_seconds: int = setting(120, "interval between PINGs to a client", 1, 86_400)
    max_pings_out: int = setting(2, "disconnect a client after this many unanswered PINGs", 1, 1000)
    no_wait_with_expires: str = setting(
        "never_wait",
        "pull request with `no_wait` and `expires`: return at once, or wait as nats-server does",
        choices="never_wait wait_for_first",
    )
    token: str = setting("", "token that clients must send (empty = none)", secret=True)
    user: str = setting("", "user that clients must log in as (empty = none)")
    password: str = setting("", "password of the user", secret=True)


@dataclass(frozen=True, slots=True)
class FetchSection:
    """Fetch requests over all protocols."""

    max_running: int = setting(10_000, "maximum concurrent fetches; more are refused", 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class ChannelPushSection:
    """Delivery of jobs to callback URLs."""

    workers: int = setting(200, "maximum concurrent callbacks", 1, 10_000)
    concurrency: int = setting(
        16, "maximum concurrent callbacks to one consumer that sets no limit itself", 1, 10_000
    )
    timeout_ms: int = setting(30_000, "timeout of one callback", 1, 3_600_000)
    max_retries: int = setting(5, "retries of a failed job before it becomes dead", 0, 255)
    backoff_seconds: tuple[str, ...] = setting(
        ("5", "30", "60"), "delay before each retry; then 1x, 2x, 3x... the last delay"
    )
    token_header: str = setting(
        "X-Broker-Consumer-Token", "header that carries the consumer's token"
    )
    user_agent: str = setting("Penstock", "User-Agent header of callbacks")
    allow_networks: tuple[str, ...] = setting(
        (), "private networks, such as 10.0.0.0/8, that callbacks may reach"
    )
    disable_after_seconds: int = setting(
        5 * DAY_SECONDS,
        "disable a consumer whose callbacks fail for this long (0 = never)",
        0,
        2**31,
    )
    secret_overlap_seconds: int = setting(
        DAY_SECONDS, "time for which a rotated secret still signs", 0, 2**31
    )


@dataclass(frozen=True, slots=True)
class ChannelScheduleSection:
    """Scheduled messages."""

    min_delay_seconds: int = setting(120, "shortest delay of a scheduled message", 0, 2**31)
    max_bytes: int = setting(768 * KIB, "largest scheduled message", 1, 768 * KIB)


@dataclass(frozen=True, slots=True)
class ChannelGatewaySection:
    """A gateway that signs the requests it forwards to the channel API."""

    secrets: tuple[str, ...] = setting(
        (), "base64 keys of the gateway (empty = signatures are not required)", secret=True
    )
    tolerance_seconds: int = setting(
        300, "largest difference between a signature's time and now", 1, DAY_SECONDS
    )
    exempt_paths: tuple[str, ...] = setting(("/_status",), "paths that need no signature")


@dataclass(frozen=True, slots=True)
class ChannelsSection:
    """Channels: webhooks pushed with retries, or pulled as jobs."""

    rational_delay_ms: int = setting(
        2000, "a pulled job is returned to the queue this long after push.timeout_ms", 0, 3_600_000
    )
    sealing_key: str = setting(
        "", "key that encrypts stored tokens (empty = not encrypted)", secret=True
    )
    seed: str = setting(
        "", "YAML of producers, channels and consumers to create at start", secret=True
    )
    push: ChannelPushSection = section(ChannelPushSection)
    schedule: ChannelScheduleSection = section(ChannelScheduleSection)
    gateway: ChannelGatewaySection = section(ChannelGatewaySection)


@dataclass(frozen=True, slots=True)
class LogSection:
    """Log events of the broker, on standard error."""

    level: str = setting("info", "lowest level that is logged", choices="debug info warning error")
    format: str = setting(
        "json", "one JSON object per line, or text for terminals", choices="json text"
    )


@dataclass(frozen=True, slots=True)
class ShutdownSection:
    """How the broker stops."""

    drain_seconds: int = setting(
        10, "time that running requests get to finish at shutdown", 0, 3600
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration."""

    role: str = setting("all", "run a broker, or a fetch node", choices="all fetch")
    metadata: Address = setting(
        Address("127.0.0.1", 7777), "gRPC address of the broker that a fetch node asks"
    )
    data: str = setting("./data", "data directory; one broker at a time may use it")
    storage: StorageSection = section(StorageSection)
    http: HttpSection = section(HttpSection)
    grpc: GrpcSection = section(GrpcSection)
    nats: NatsSection = section(NatsSection)
    fetch: FetchSection = section(FetchSection)
    channels: ChannelsSection = section(ChannelsSection)
    log: LogSection = section(LogSection)
    shutdown: ShutdownSection = section(ShutdownSection)

    @property
    def wal_dir(self) -> Path:
        return Path(self.storage.wal.dir or Path(self.data) / "wal")
