"""The rows of the admin API, and what is derived from them."""

import pytest

from penstock.formats.admin_api import NAMESPACE, OPERATIONS, TENANT, TOPIC, AdminOperation, Verb
from penstock.formats.rpc import METHODS
from penstock.metadata.catalog import Admin
from penstock.model.errors import NameInvalid
from penstock.model.names import Namespace, TopicName


def test_an_operation_names_its_method_call_and_path() -> None:
    rows = [(row.method_name, row.call, row.verb.method, row.path) for row in OPERATIONS]
    assert rows[-4:] == [
        ("list_topics", "ListTopics", "GET", "/v1/tenants/{tenant}/namespaces/{namespace}/topics"),
        (
            "create_topic",
            "CreateTopic",
            "POST",
            "/v1/tenants/{tenant}/namespaces/{namespace}/topics",
        ),
        (
            "get_topic",
            "GetTopic",
            "GET",
            "/v1/tenants/{tenant}/namespaces/{namespace}/topics/{topic}",
        ),
        (
            "delete_topic",
            "DeleteTopic",
            "DELETE",
            "/v1/tenants/{tenant}/namespaces/{namespace}/topics/{topic}",
        ),
    ]
    assert len(rows) == 12


@pytest.mark.feature("F27")
def test_every_operation_is_a_method_of_admin_and_a_grpc_call() -> None:
    methods = {name for name in vars(Admin) if not name.startswith("_")}
    assert {row.method_name for row in OPERATIONS} == methods
    calls = {name for name, method in METHODS.items() if ".Admin/" in method.path}
    assert {row.call for row in OPERATIONS} == calls


def test_the_url_of_a_request_has_its_ids_percent_encoded() -> None:
    get = AdminOperation(Verb.GET, TOPIC)
    url = get.url(tenant="a", namespace="b", topic="ü/ x")
    assert url == "/v1/tenants/a/namespaces/b/topics/%C3%BC%2F%20x"


def test_a_resource_is_named_by_its_parent_and_its_id() -> None:
    assert TENANT.name("", "a") == "a"
    assert NAMESPACE.name("tenants/a", "b") == Namespace("a", "b")
    assert TOPIC.name("tenants/a/namespaces/b", "c") == TopicName("a", "b", "c")
    with pytest.raises(NameInvalid):
        TOPIC.name("tenants/a/namespaces/b", "c/d")
