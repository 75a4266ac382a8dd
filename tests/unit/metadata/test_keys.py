import pytest

from penstock.metadata.keys import Keys
from penstock.model.names import TopicName

ORDERS = TopicName("acme", "prod", "orders")


@pytest.mark.feature("T25")
def test_keys_are_those_of_the_design_under_a_prefix_of_choice() -> None:
    keys = Keys("/danube/")
    below = "/danube/storage/topics/acme/prod/orders"
    assert keys.topic(ORDERS) == below
    assert keys.owner(ORDERS) == f"{below}/owner"
    assert keys.manifest(ORDERS) == f"{below}/objects/cur"
    assert keys.objects(ORDERS) == f"{below}/objects/list/"
    assert keys.object(ORDERS, 7) == f"{below}/objects/list/00000000000000000007"
    assert keys.progress(ORDERS, "sub") == "/danube/subscriptions/acme/prod/orders/sub/progress"
    assert Keys().owner(ORDERS) == "/penstock/storage/topics/acme/prod/orders/owner"


def test_no_name_reaches_the_key_of_another() -> None:
    keys = Keys()
    names = ["a", "A", "a/b", "a%2fb", "../a", "a.b", "é", "a" * 255, "a" * 254 + "b"]
    topics = [TopicName("t", "n", name) for name in names]
    made = [keys.owner(topic) for topic in topics]
    made += [keys.progress(ORDERS, name) for name in names]
    assert len(set(made)) == 2 * len(names)
    assert all(key.count("/") == made[0].count("/") for key in made[: len(names)])
