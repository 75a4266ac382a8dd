import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import names
from penstock.model.errors import NameInvalid
from penstock.model.limits import TENANT_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX
from penstock.model.names import Namespace, TopicName

TENANTS = st.from_regex(r"[a-z][a-z0-9_-]{0,62}", fullmatch=True)
TOPICS = st.text(min_size=1, max_size=TOPIC_CHARACTERS_MAX).filter(
    lambda text: not any(c in ".*>/\\" or c.isspace() or _is_control(c) for c in text)
)


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code <= 0x9F or 0xD800 <= code <= 0xDFFF


@given(TENANTS, TENANTS, TOPICS)
def test_a_topic_is_read_back_from_its_short_and_its_full_name(
    tenant: str, namespace: str, id_: str
) -> None:
    name = TopicName(tenant, namespace, id_)
    assert str(name) == f"{tenant}/{namespace}/{id_}"
    assert name.full == f"tenants/{tenant}/namespaces/{namespace}/topics/{id_}"
    assert names.topic(str(name)) == names.topic(name.full) == name
    assert names.topic(id_, Namespace(tenant, namespace)) == name


@given(TENANTS, TENANTS)
def test_a_namespace_is_read_back_from_its_short_and_its_full_name(
    tenant: str, namespace: str
) -> None:
    name = Namespace(tenant, namespace)
    assert str(name) == f"{tenant}/{namespace}"
    assert name.full == f"tenants/{tenant}/namespaces/{namespace}"
    assert names.namespace(str(name)) == names.namespace(name.full) == name


def test_a_bare_id_is_a_topic_of_the_default_namespace() -> None:
    assert names.topic("orders") == TopicName("default", "default", "orders")


@pytest.mark.parametrize(
    "text",
    ["", "a.b", "a*", ">", "a b", "a\tb", "a\x00", "a\x7f", "a\x85", "a\u2028b", "a\\b", "\ud800"],
)
def test_a_malformed_topic_id_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(NameInvalid, match=r"topic name .* 1 to 255 characters without") as caught:
        names.topic(text)
    assert (caught.value.kind, caught.value.name) == ("topic", text)


def test_a_topic_id_has_a_limit() -> None:
    assert names.topic("é" * TOPIC_CHARACTERS_MAX).topic == "é" * TOPIC_CHARACTERS_MAX
    with pytest.raises(NameInvalid):
        names.topic("é" * (TOPIC_CHARACTERS_MAX + 1))


@pytest.mark.parametrize("bad", ["", "A", "1a", "_a", "-a", "a.b", "ä", "a\n", "a b", "a" * 64])
def test_a_malformed_tenant_or_namespace_is_refused_by_its_kind(bad: str) -> None:
    with pytest.raises(NameInvalid, match="tenant name") as caught:
        names.topic(f"{bad}/n/t")
    assert (caught.value.kind, caught.value.name) == ("tenant", bad)
    with pytest.raises(NameInvalid, match="namespace name"):
        names.namespace(f"t/{bad}")


def test_a_tenant_has_a_limit() -> None:
    longest = "a" * TENANT_CHARACTERS_MAX
    assert names.namespace(f"{longest}/{longest}") == Namespace(longest, longest)


@pytest.mark.parametrize(
    "text", ["a/b", "a/b/c/d", "tenants/a/namespaces/b", "x/a/namespaces/b/topics/c", "/", "a//"]
)
def test_a_topic_name_of_the_wrong_shape_is_refused(text: str) -> None:
    with pytest.raises(NameInvalid):
        names.topic(text)


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "tenants/a/spaces/b", "tenants/a/b/c"])
def test_a_namespace_name_of_the_wrong_shape_is_refused(text: str) -> None:
    with pytest.raises(NameInvalid, match="'tenant/namespace' or the full name"):
        names.namespace(text)


@given(TENANTS)
def test_a_tenant_is_read_from_its_id_and_its_full_name(tenant: str) -> None:
    assert names.tenant(tenant) == names.tenant(f"tenants/{tenant}") == tenant


@pytest.mark.parametrize("text", ["", "A", "tenants/", "tenants/a/b", "x/a"])
def test_a_malformed_tenant_is_refused(text: str) -> None:
    with pytest.raises(NameInvalid, match="tenant name"):
        names.tenant(text)
