import pytest

from penstock.metadata.keys import MetadataKeys
from penstock.model.names import Namespace, TopicName

ORDERS = TopicName("acme", "prod", "orders")


@pytest.mark.feature("T25")
def test_keys_are_below_a_configurable_prefix() -> None:
    keys = MetadataKeys("/danube/")
    below = "/danube/storage/topics/acme/prod/orders"
    assert keys.topic(ORDERS) == below
    assert keys.owner(ORDERS) == f"{below}/owner"
    assert keys.manifest(ORDERS) == f"{below}/objects/cur"
    assert keys.objects(ORDERS) == f"{below}/objects/list/"
    assert keys.object(ORDERS, 7) == f"{below}/objects/list/00000000000000000007"
    assert keys.progress(ORDERS, "sub") == "/danube/subscriptions/acme/prod/orders/sub/progress"
    assert keys.partition(ORDERS, 7) == f"{below}/partitions/0000000007"
    assert keys.tenant("acme") == "/danube/catalog/tenants/acme"
    assert keys.namespace(Namespace("acme", "prod")) == "/danube/catalog/namespaces/acme/prod"
    assert keys.topic_record(ORDERS) == "/danube/catalog/topics/acme/prod/orders"
    assert MetadataKeys().owner(ORDERS) == "/penstock/storage/topics/acme/prod/orders/owner"


def test_different_names_have_different_keys() -> None:
    keys = MetadataKeys()
    names = ["a", "A", "a/b", "a%2fb", "../a", "a.b", "é", "a" * 255, "a" * 254 + "b"]
    topics = [TopicName("t", "n", name) for name in names]
    all_keys = [keys.owner(topic) for topic in topics]
    all_keys += [keys.progress(ORDERS, name) for name in names]
    assert len(set(all_keys)) == 2 * len(names)
    assert all(key.count("/") == all_keys[0].count("/") for key in all_keys[: len(names)])


def test_prefixes_cover_exactly_their_own_keys() -> None:
    keys = MetadataKeys()
    prod = Namespace("acme", "prod")
    assert keys.topic_record(ORDERS).startswith(keys.namespace_topics(prod))
    assert not keys.topic_record(ORDERS).startswith(keys.namespace_topics(Namespace("acme", "p")))
    assert keys.namespace(prod).startswith(keys.namespaces("acme"))
    assert not keys.namespace(prod).startswith(keys.namespaces("acm"))
    assert keys.partition(ORDERS, 1).startswith(keys.partitions(ORDERS))
    assert keys.progress(ORDERS, "s").startswith(keys.subscriptions(ORDERS))
    other = ORDERS._replace(topic="orders-2")
    assert not keys.partition(other, 1).startswith(keys.partitions(ORDERS))
    assert not keys.progress(other, "s").startswith(keys.subscriptions(ORDERS))


def test_ids_sort_by_number() -> None:
    keys = MetadataKeys()
    all_keys = [keys.partition(ORDERS, number) for number in (0, 9, 10, 99, 100, (1 << 31) - 1)]
    assert all_keys == sorted(all_keys)
