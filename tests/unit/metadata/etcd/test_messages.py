from penstock.metadata.etcd import messages as etcd_messages
from penstock.metadata.etcd.messages import message


def test_a_request_is_the_bytes_etcd_expects() -> None:
    put = message("PutRequest", key=b"k", value=b"v", lease=300)
    assert put.SerializeToString() == b"\x0a\x01k\x12\x01v\x18\xac\x02"
    grant = message("LeaseGrantRequest", TTL=10)
    assert grant.SerializeToString() == b"\x08\x0a"


def test_a_comparison_with_zero_is_sent() -> None:
    compare = message("Compare", result=0, target=1, key=b"k", create_revision=0)
    assert compare.SerializeToString() == b"\x10\x01\x1a\x01k\x28\x00"
    compare = message("Compare", target=3, key=b"k", value=b"")
    assert compare.SerializeToString() == b"\x10\x03\x1a\x01k\x3a\x00"


def test_a_delete_in_a_transaction_differs_from_a_put() -> None:
    operation = message("RequestOp", request_delete_range=message("DeleteRangeRequest", key=b"k"))
    transaction = message("TxnRequest", success=[operation])
    assert transaction.SerializeToString() == b"\x12\x05\x1a\x03\x0a\x01k"


def test_a_response_with_fields_we_do_not_know_is_read() -> None:
    data = b"\x0a\x06\x08\x01\x10\x02\x18\x07\x12\x05\x0a\x01k\x10\x05\x20\x01"
    response = etcd_messages.RANGE.response.FromString(data)
    assert (response.header.revision, response.more) == (7, False)
    assert [(kv.key, kv.create_revision, kv.value) for kv in response.kvs] == [(b"k", 5, b"")]


def test_the_calls_have_the_names_etcd_gives_them() -> None:
    assert etcd_messages.TXN.path == "/etcdserverpb.KV/Txn"
    assert etcd_messages.LEASE_KEEP_ALIVE.path == "/etcdserverpb.Lease/LeaseKeepAlive"
    assert etcd_messages.WATCH.path == "/etcdserverpb.Watch/Watch"
    assert etcd_messages.AUTHENTICATE.path == "/etcdserverpb.Auth/Authenticate"
