"""What every command that talks to a broker shares: options, names, output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.model import names
from penstock.model.names import Namespace, TopicName

if TYPE_CHECKING:
    from penstock.client.sync import SyncClient

_F = TypeVar("_F", bound=Callable[..., Any])

url: Final = click.option(
    "--url",
    metavar="URL",
    help="Broker, such as http://127.0.0.1:8080.  [default: $PENSTOCK_URL, else port 8080 here]",
)
namespace: Final = click.option(
    "--namespace",
    default=str(names.DEFAULT_NAMESPACE),
    show_default=True,
    metavar="T/N",
    help="Namespace of topics named by their id alone.",
)
partition_value: Final = click.option(
    "--partition-value", metavar="VALUE", help="Value of the topic's partition column."
)
as_json: Final = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def connect(url_: str | None) -> SyncClient:
    """A client of the broker to talk to."""
    from penstock.client.sync import SyncClient

    return SyncClient(url_)


def topic_name(topic: str, namespace_: str) -> TopicName:
    return names.topic(topic, names.namespace(namespace_))


def namespace_name(text: str) -> Namespace:
    return names.namespace(text)


def tell(fact: object) -> None:
    """One fact as a line of JSON."""
    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(fact), ensure_ascii=False))
