"""Delivers the messages of streams to JetStream consumers, pull and push, and records their acks.

`Deliveries` follows the streams that a broker serves, `Consumers` manages the consumers of one
stream, and `Consumer` carries out the decisions of one ledger. `DeliveryHost` names the parts of a
broker that they need, `Outlet` the way to the clients.
"""

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.consumer_rules import parse_pull_request
from penstock.delivery.consumers.consumers import Consumers
from penstock.delivery.consumers.deliveries import Deliveries
from penstock.delivery.consumers.host import DeliveryHost, DeliveryLimits, Outlet
from penstock.delivery.consumers.push import PushConsumer
from penstock.delivery.consumers.records import ConsumerRecord
from penstock.delivery.consumers.view import ConsumerCursor, consumer_page, consumer_view

__all__ = [
    "Consumer",
    "ConsumerCursor",
    "ConsumerRecord",
    "Consumers",
    "Deliveries",
    "DeliveryHost",
    "DeliveryLimits",
    "Outlet",
    "PushConsumer",
    "consumer_page",
    "consumer_view",
    "parse_pull_request",
]
