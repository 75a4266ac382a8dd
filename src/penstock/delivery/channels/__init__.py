"""Channels: messages of a topic become jobs, which are pushed to callbacks or pulled by clients.

Protocols call `ChannelService`. Its entities (producers, channels, endpoints) are records in the
metadata store. The jobs of a channel are ledgers (`penstock.ledger.jobs`) over the log of its
topic. `PushWorkers` deliver jobs to the callbacks of endpoints.
"""

from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.endpoint_jobs import (
    EndpointJobs,
    JobChangeRefused,
    JobDetails,
    JobLeaseEnded,
    JobOfAnotherEndpoint,
    JobsNotReady,
    JobUnknown,
)
from penstock.delivery.channels.entities import (
    PULL,
    PUSH,
    Channel,
    Endpoint,
    Producer,
    ScheduledMessage,
    Versioned,
)
from penstock.delivery.channels.headers import HEADERS_MAX, ID_CHARACTERS_MAX, may_pass
from penstock.delivery.channels.messages import (
    CONTENT_TYPE_DEFAULT,
    JobMessage,
    NewMessage,
    parse_priority,
)
from penstock.delivery.channels.records import EndpointSpec
from penstock.delivery.channels.sealing import Sealing
from penstock.delivery.channels.seed import is_absolute, parse_seed
from penstock.delivery.channels.service import ChannelService
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.store import (
    PAGE_SIZE,
    ChannelStore,
    CursorQuery,
    EntityTable,
    JobFloors,
    PageCursor,
)
from penstock.ledger.job_states import OFFSET_LIMIT, JobState, Refusal

__all__ = [
    "CONTENT_TYPE_DEFAULT",
    "HEADERS_MAX",
    "ID_CHARACTERS_MAX",
    "OFFSET_LIMIT",
    "PAGE_SIZE",
    "PULL",
    "PUSH",
    "Addresses",
    "Channel",
    "ChannelService",
    "ChannelSettings",
    "ChannelStore",
    "CursorQuery",
    "Endpoint",
    "EndpointJobs",
    "EndpointSpec",
    "EntityTable",
    "JobChangeRefused",
    "JobDetails",
    "JobFloors",
    "JobLeaseEnded",
    "JobMessage",
    "JobOfAnotherEndpoint",
    "JobState",
    "JobUnknown",
    "JobsNotReady",
    "NewMessage",
    "PageCursor",
    "Producer",
    "Refusal",
    "ScheduledMessage",
    "Sealing",
    "Versioned",
    "is_absolute",
    "may_pass",
    "parse_priority",
    "parse_seed",
]
