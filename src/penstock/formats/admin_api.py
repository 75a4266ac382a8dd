"""The admin API, declared once: resources, and the operations on each.

The gRPC service and the HTTP routes of a broker, and the clients of both, are derived from these
rows. A call of gRPC and a method of `Admin` are named after the verb and the resource
(`CreateTopic`, `create_topic`). penstock.proto declares the gRPC messages, formats/api.py the JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from msgspec import Struct

from penstock.formats import api
from penstock.model import errors, names
from penstock.model.errors import PenstockError

_Name = TypeVar("_Name")
_Reply = TypeVar("_Reply", bound=Struct)


@dataclass(frozen=True, slots=True)
class Resource(Generic[_Name, _Reply]):
    """A kind of resource; each resource has a parent, except tenants, and an id within it."""

    kind: str
    """`topic`; also the gRPC field and the path parameter that hold one."""
    parent: Resource[Any, Any] | None
    parse: Callable[[str], _Name]
    """Parses a full name; raises NameInvalid."""
    creation: type[Struct]
    """The JSON body of a creation."""
    reply: type[_Reply]
    """The JSON of one resource."""
    page: type[Struct]
    """The JSON of a page of a list."""

    @property
    def plural(self) -> str:
        """`topics`; also the field of a list that holds its items."""
        return f"{self.kind}s"

    @property
    def message(self) -> str:
        """The gRPC message of one resource."""
        return self.kind.capitalize()

    @property
    def collection(self) -> str:
        """The HTTP path of the list."""
        return f"{'/v1' if self.parent is None else self.parent.path}/{self.plural}"

    @property
    def path(self) -> str:
        """The HTTP path of one resource."""
        return f"{self.collection}/{{{self.kind}}}"

    def name(self, parent: str, id_: str) -> _Name:
        """The name of a resource, by the name of its parent and its id; raises NameInvalid."""
        within = "" if self.parent is None else f"{self.parent.parse(parent)}/"
        return self.parse(within + id_)


class Verb(Enum):
    """What an operation does, and its HTTP method."""

    LIST = "GET"
    CREATE = "POST"
    GET = "GET one"
    DELETE = "DELETE"

    @property
    def method(self) -> str:
        return self.value.split()[0]


class AdminOperation(NamedTuple):
    """A row of the API: what one call or route does."""

    verb: Verb
    resource: Resource[Any, Any]

    @property
    def method_name(self) -> str:
        """The method of `Admin`."""
        lists = self.verb is Verb.LIST
        return f"{self.verb.name.lower()}_{self.resource.plural if lists else self.resource.kind}"

    @property
    def call(self) -> str:
        """The gRPC call."""
        return "".join(map(str.capitalize, self.method_name.split("_")))

    @property
    def path(self) -> str:
        """The HTTP path, with parameters such as `{tenant}`."""
        inside = self.verb in (Verb.LIST, Verb.CREATE)
        return self.resource.collection if inside else self.resource.path

    @property
    def request(self) -> type[Struct] | None:
        """The JSON body."""
        return self.resource.creation if self.verb is Verb.CREATE else None

    @property
    def reply(self) -> type[Struct] | None:
        """The JSON of the reply."""
        replies = {Verb.LIST: self.resource.page, Verb.DELETE: None}
        return replies.get(self.verb, self.resource.reply)

    @property
    def errors(self) -> tuple[type[PenstockError], ...]:
        """The errors that the operation raises for its own reasons."""
        return _ERRORS[self.verb]

    @property
    def summary(self) -> str:
        """One sentence for people."""
        return _SUMMARIES[self.verb].format(self.resource.kind)

    def url(self, **ids: str) -> str:
        """The HTTP path of one request."""
        return self.path.format(**{kind: quote(id_, "") for kind, id_ in ids.items()})


_ERRORS: Final[dict[Verb, tuple[type[PenstockError], ...]]] = {
    Verb.LIST: (errors.NameInvalid, errors.ResourceUnknown),
    Verb.CREATE: (
        errors.NameInvalid,
        errors.SchemaInvalid,
        errors.ResourceUnknown,
        errors.ResourceExists,
        errors.ResourceInUse,
        errors.Overloaded,
    ),
    Verb.GET: (errors.NameInvalid, errors.ResourceUnknown),
    Verb.DELETE: (errors.NameInvalid, errors.ResourceUnknown, errors.ResourceInUse),
}
_SUMMARIES: Final = {
    Verb.LIST: "List {}s, page by page.",
    Verb.CREATE: "Create a {}.",
    Verb.GET: "Show a {}.",
    Verb.DELETE: "Delete a {}.",
}

TENANT: Final = Resource(
    "tenant", None, names.tenant, api.CreateTenant, api.TenantReply, api.TenantList
)
NAMESPACE: Final = Resource(
    "namespace",
    TENANT,
    names.namespace,
    api.CreateNamespace,
    api.NamespaceReply,
    api.NamespaceList,
)
TOPIC: Final = Resource(
    "topic", NAMESPACE, names.topic, api.CreateTopic, api.TopicReply, api.TopicList
)

OPERATIONS: Final = tuple(
    AdminOperation(verb, resource) for resource in (TENANT, NAMESPACE, TOPIC) for verb in Verb
)
"""Every operation of the API."""
