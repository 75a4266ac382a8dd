import pytest

from penstock.model.names import DEFAULT_NAMESPACE, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.protocols.http import requests
from penstock.protocols.http.errors import BadRequest
from tests.broker.http import HttpSite


async def test_a_namespace_must_exist(server: HttpSite) -> None:
    admin = server.served.admin
    for text in ("default/default", "tenants/default/namespaces/default"):
        assert await requests.known_namespace(admin, text) == DEFAULT_NAMESPACE
    for text in ("default/no", "no"):
        with pytest.raises(BadRequest):
            await requests.known_namespace(admin, text)


def test_a_topic_belongs_to_its_namespace() -> None:
    name = TopicName("default", "default", "a")
    for text in ("a", "default/default/a", "tenants/default/namespaces/default/topics/a"):
        assert requests.topic_within(DEFAULT_NAMESPACE, text) == name
    for text in ("a.b", "default/other/a"):
        with pytest.raises(BadRequest, match=r"bad request: invalid topic name: "):
            requests.topic_within(DEFAULT_NAMESPACE, text)


def test_partition_values_are_tagged() -> None:
    assert requests.partition(None) is None
    assert requests.partition({"Int64": 7}) == PartitionValue("Int64", 7)
    assert requests.partition_text(None) is None
    assert requests.partition_text('{"Bytes":[1]}') == PartitionValue("Bytes", b"\x01")
    for text in ("", "x", "7", "[" * 100_000):
        with pytest.raises(BadRequest, match="partition value"):
            requests.partition_text(text)


def test_what_a_client_sent_is_not_told_at_any_length() -> None:
    assert requests.shortened("x" * 500) == "x" * 500
    assert requests.shortened("x" * 501) == "x" * 500 + "..."
    with pytest.raises(BadRequest) as caught:
        requests.topic_within(DEFAULT_NAMESPACE, "x" * 100_000)
    assert len(str(caught.value)) < 1100
