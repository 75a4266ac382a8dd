"""Resource names: `tenants/{t}/namespaces/{n}/topics/{id}`, or `t/n/id` in short."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.model.errors import NameInvalid
from penstock.model.limits import TENANT_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX

DEFAULT: Final = "default"
PARTS_MAX: Final = 6
"""Parts of the longest full name; a text is split at most so often."""

_TENANT: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_TENANT_RULE: Final = (
    f"1 to {TENANT_CHARACTERS_MAX} of a-z, 0-9, '_' and '-', starting with a letter"
)
_TOPIC_FORBIDDEN: Final = re.compile(r"[.*>/\\\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TOPIC_RULE: Final = (
    f"1 to {TOPIC_CHARACTERS_MAX} characters without '.', '*', '>', '/', '\\', white space "
    "or control characters"
)


class Namespace(NamedTuple):
    """The name of a namespace; a NATS account is a namespace."""

    tenant: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @property
    def full(self) -> str:
        return f"tenants/{self.tenant}/namespaces/{self.namespace}"


class TopicName(NamedTuple):
    """The name of a topic with its namespace."""

    tenant: str
    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.topic}"

    @property
    def full(self) -> str:
        return f"tenants/{self.tenant}/namespaces/{self.namespace}/topics/{self.topic}"


DEFAULT_NAMESPACE: Final = Namespace(DEFAULT, DEFAULT)


def tenant(text: str) -> str:
    """Parse an id or the full name `tenants/{t}`; raises NameInvalid."""
    return _tenant("tenant", text.removeprefix("tenants/"))


def namespace(text: str) -> Namespace:
    """Parse `t/n` or the full name; raises NameInvalid."""
    parts = text.split("/", PARTS_MAX)
    if len(parts) == 4 and parts[0] == "tenants" and parts[2] == "namespaces":
        parts = [parts[1], parts[3]]
    if len(parts) != 2:
        raise NameInvalid("namespace", text, "'tenant/namespace' or the full name")
    return Namespace(_tenant("tenant", parts[0]), _tenant("namespace", parts[1]))


def topic(text: str, within: Namespace = DEFAULT_NAMESPACE) -> TopicName:
    """Parse an id, `t/n/id` or the full name; raises NameInvalid."""
    parts = text.split("/", PARTS_MAX)
    if len(parts) == 1:
        return TopicName(*within, _topic_id(text))
    if len(parts) == 6 and parts[0::2] == ["tenants", "namespaces", "topics"]:
        parts = parts[1::2]
    if len(parts) != 3:
        raise NameInvalid("topic", text, "an id, 'tenant/namespace/id' or the full name")
    return TopicName(
        _tenant("tenant", parts[0]), _tenant("namespace", parts[1]), _topic_id(parts[2])
    )


def _tenant(kind: str, text: str) -> str:
    if not _TENANT.fullmatch(text):
        raise NameInvalid(kind, text, _TENANT_RULE)
    return text


def _topic_id(text: str) -> str:
    if not 1 <= len(text) <= TOPIC_CHARACTERS_MAX or _TOPIC_FORBIDDEN.search(text):
        raise NameInvalid("topic", text, _TOPIC_RULE)
    return text
