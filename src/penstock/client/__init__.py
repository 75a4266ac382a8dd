"""Python clients of a broker, and the conversations they carry out.

`SyncClient` blocks and `Client` is for asyncio; both have the methods of `Operations`. Everything
else that the HTTP API offers is a function that returns a conversation, for the clients' `run`.
A NATS client is in `penstock.client.nats`. Importing this package loads neither pyarrow nor
aiohttp.
"""

from penstock.client.admin import (
    create_namespace,
    create_tenant,
    create_topic,
    delete_namespace,
    delete_tenant,
    delete_topic,
    get_topic,
    list_consumers,
    list_namespaces,
    list_partitions,
    list_tenants,
    list_topics,
    topic_creation,
)
from penstock.client.aio import Client
from penstock.client.channel_calls import (
    broadcast_message,
    call_as_consumer,
    delete_consumer,
    get_record,
    list_records,
    put_record,
    requeue_dead_jobs,
)
from penstock.client.exchange import (
    BrokerRefused,
    BrokerReply,
    BrokerRequest,
    BrokerUnreachable,
    Conversation,
    broker_url,
)
from penstock.client.messages import (
    FetchedMessage,
    FetchedTable,
    PushedRange,
    fetch_json,
    fetch_limits,
    fetch_table,
    get_message,
    get_partition,
    message_query,
    parse_partition,
    push_rows,
    push_table,
    resolve_offset,
    table_parts,
    topic_schema,
)
from penstock.client.plans import (
    TopicPlan,
    compact_objects,
    get_plan,
    link_objects,
    offsets_at,
    sweep_objects,
)
from penstock.client.rows import table_of
from penstock.client.sync import SyncClient

__all__ = [
    "BrokerRefused",
    "BrokerReply",
    "BrokerRequest",
    "BrokerUnreachable",
    "Client",
    "Conversation",
    "FetchedMessage",
    "FetchedTable",
    "PushedRange",
    "SyncClient",
    "TopicPlan",
    "broadcast_message",
    "broker_url",
    "call_as_consumer",
    "compact_objects",
    "create_namespace",
    "create_tenant",
    "create_topic",
    "delete_consumer",
    "delete_namespace",
    "delete_tenant",
    "delete_topic",
    "fetch_json",
    "fetch_limits",
    "fetch_table",
    "get_message",
    "get_partition",
    "get_plan",
    "get_record",
    "get_topic",
    "link_objects",
    "list_consumers",
    "list_namespaces",
    "list_partitions",
    "list_records",
    "list_tenants",
    "list_topics",
    "message_query",
    "offsets_at",
    "parse_partition",
    "push_rows",
    "push_table",
    "put_record",
    "requeue_dead_jobs",
    "resolve_offset",
    "sweep_objects",
    "table_of",
    "table_parts",
    "topic_creation",
    "topic_schema",
]
