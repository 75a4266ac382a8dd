"""The topics of a broker: their life cycle, their partitions, and push, fetch, plan and link.

`Topics` finds, opens, creates and deletes the topics that a broker serves; `LocalAdmin` and
`LocalOffsets` serve the admin API and offset locations from them. An `OpenTopic` is appended to and
read through its `OpenPartition`s. `Pusher` appends rows, `Fetcher` reads them from a `Source`,
`Plans` describes the objects and the hot tail, and `link` assigns offsets to objects that another
engine wrote. `penstock.topics.remote` is the source of a node that has no topics of its own.
"""

from penstock.topics.admin import LocalAdmin
from penstock.topics.fetch_state import FETCH_BYTES_MAX, FetchState
from penstock.topics.fetcher import Fetched, Fetcher
from penstock.topics.host import TopicHost
from penstock.topics.linking import Linked, LinkItem, link
from penstock.topics.offsets import LocalOffsets
from penstock.topics.open_partition import OpenPartition
from penstock.topics.open_topic import OpenTopic
from penstock.topics.plans import PlanGone, Plans
from penstock.topics.pusher import Pusher, PushItem
from penstock.topics.source import LocalSource, Source, TopicPartition
from penstock.topics.topics import Topics
from penstock.topics.unopened import UnopenedTopic, UnopenedTopics

__all__ = [
    "FETCH_BYTES_MAX",
    "FetchState",
    "Fetched",
    "Fetcher",
    "LinkItem",
    "Linked",
    "LocalAdmin",
    "LocalOffsets",
    "LocalSource",
    "OpenPartition",
    "OpenTopic",
    "PlanGone",
    "Plans",
    "PushItem",
    "Pusher",
    "Source",
    "TopicHost",
    "TopicPartition",
    "Topics",
    "UnopenedTopic",
    "UnopenedTopics",
    "link",
]
