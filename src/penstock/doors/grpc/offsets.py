"""The service OffsetRegistry: requests read, asked of a registry, answers written."""

from __future__ import annotations

from typing import Any

from penstock.doors.grpc.admin import Handlers
from penstock.formats.rpc import message
from penstock.metadata import rpc_values as values
from penstock.metadata.offsets import OffsetRegistry
from penstock.model import names


def offset_handlers(registry: OffsetRegistry) -> Handlers:
    """Everything of the service."""

    async def offset_location(request: Any) -> Any:
        location = await registry.offset_location(
            names.topic(request.topic),
            values.of_value(request),
            values.of_offset(request.offset),
            values.of_time(request.deadline),
        )
        return values.to_location(location)

    async def get_partition(request: Any) -> Any:
        topic = names.topic(request.topic)
        return values.to_partition(await registry.get_partition(topic, values.of_value(request)))

    async def list_partitions(request: Any) -> Any:
        topic = names.topic(request.parent)
        listed = await registry.list_partitions(topic, values.of_page(request))
        return message(
            "ListPartitionsResponse",
            partitions=map(values.to_partition, listed.items),
            next_page_token=listed.next_token,
        )

    return {
        "OffsetLocation": offset_location,
        "GetPartition": get_partition,
        "ListPartitions": list_partitions,
    }
