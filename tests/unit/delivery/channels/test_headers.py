"""Headers that callbacks receive, and what topics of channels admit."""

import pyarrow as pa
import pytest

from penstock.delivery.channels.headers import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    ID_CHARACTERS_MAX,
    CallbackHeaders,
    callback_headers,
    exceeded_limit,
    field_value,
    guard_topic,
    may_pass,
)
from penstock.formats import header_block
from penstock.model.columns import Columns
from penstock.model.errors import RunInvalid, SignatureRequired
from penstock.model.run import ColumnRun, Origin, Run
from penstock.model.units import ONLY_PARTITION
from penstock.topics import linking
from tests.broker.storage import World
from tests.broker.topics import serve


def test_callbacks_never_receive_headers_with_secrets() -> None:
    for name in ("Authorization", "COOKIE", "X-Broker-Channel-Token", "webhook-id", "Nats-Msg-Id"):
        assert not may_pass(name)
    assert may_pass("traceparent")


@pytest.mark.parametrize("name", ["Proxy", "proxy-status", "Proxy-Connection"])
def test_callbacks_receive_no_proxy_headers(name: str) -> None:
    assert not may_pass(name)


@pytest.mark.parametrize("name", ["Content_Length", "X_Broker_Consumer-Token", "webhook_id"])
def test_a_name_that_cgi_reads_as_a_reserved_one_is_refused(name: str) -> None:
    assert callback_headers([(name, "1")], None) == CallbackHeaders([], 1)
    assert may_pass("x_my_header")


@pytest.mark.parametrize(
    "name", ["", "X A", "X-A ", "X:A", "X-ä", "X\tA", "X(A)", "Transfer-Encoding "]
)
def test_a_header_name_must_be_a_token(name: str) -> None:
    assert not may_pass(name)


def test_a_header_name_may_have_every_token_character() -> None:
    assert may_pass("!#$%&'*+-.^_`|~0aZ")


def test_a_value_has_no_control_characters_except_tabs() -> None:
    assert field_value(" a\tb ä ") == "a\tb ä"
    for code in (*range(9), *range(10, 32), 127):
        assert field_value(f"a{chr(code)}b") is None


def test_unlisted_headers_are_left_out_and_reserved_ones_dropped() -> None:
    pairs = [("A", "1"), ("B", "2"), ("Host", "h"), ("X-Broker-Attempt", "1")]
    assert callback_headers(pairs, {"a", "host"}) == CallbackHeaders([("A", "1")], 1)
    assert callback_headers(pairs, None) == CallbackHeaders([("A", "1"), ("B", "2")], 1)


def test_the_limit_that_a_header_block_exceeds_is_named() -> None:
    full = [(f"X-{n}", "1") for n in range(HEADERS_MAX)]
    own = [
        ("X-Broker-Message-ID", "ä" * ID_CHARACTERS_MAX),
        ("Nats-Msg-Id", "n"),
        ("Content-Type", "t"),
    ]
    assert exceeded_limit(b"") is None
    assert exceeded_limit(header_block.encode([*own, *full])) is None
    assert exceeded_limit(header_block.encode([*full, ("X-More", "1")])) == (
        "a message has 101 headers, HEADERS_MAX is 100"
    )
    assert exceeded_limit(header_block.encode([("x-broker-message-id", "x" * 256)])) == (
        "X-Broker-Message-ID has 256 characters, ID_CHARACTERS_MAX is 255"
    )
    large = header_block.encode([("X", "x" * HEADER_BYTES_MAX)])
    assert exceeded_limit(large) == (
        f"a message has {len(large)} bytes of headers, HEADER_BYTES_MAX is {HEADER_BYTES_MAX}"
    )


LONG = header_block.encode([("X-Broker-Message-ID", "m" * 256)])
GOOD = header_block.encode([("X-A", "1" * 256)])


def columns(*blocks: bytes | None) -> ColumnRun:
    payloads = pa.array([b"x"] * len(blocks), pa.binary())
    return ColumnRun(Columns(b"s", payloads, pa.array(blocks, pa.binary())))


@pytest.mark.feature("C23")
async def test_no_run_over_a_limit_is_appended_in_either_form(world: World) -> None:
    opened = await (await serve(world)).create()
    guard_topic(opened, signed_only=False)
    for run in (Run(b"s", [b"x", b"y"], [GOOD, LONG]), columns(None, GOOD, LONG)):
        with pytest.raises(RunInvalid, match=r"is a channel: .* ID_CHARACTERS_MAX is 255"):
            opened.partition(run.partition).append(run)
    for run in (Run(b"s", [b"x"]), Run(b"s", [b"x"], [GOOD]), columns(None, GOOD)):
        await opened.partition(run.partition).append(run)
    assert opened.log.next_offset(run.partition) == 4


@pytest.mark.feature("C23")
async def test_a_topic_with_signed_broadcasts_admits_the_broker_only(world: World) -> None:
    opened = await (await serve(world)).create()
    guard_topic(opened, signed_only=True)
    with pytest.raises(SignatureRequired, match="takes signed broadcasts only"):
        opened.partition(ONLY_PARTITION).append(Run(b"s", [b"x"]))
    with pytest.raises(SignatureRequired):
        await linking.link(opened, "app", 1, [])
    run = Run(b"s", [b"x"], [LONG])
    await opened.partition(ONLY_PARTITION).append(run, Origin.BROKER)


@pytest.mark.feature("C23")
async def test_the_rules_of_the_topic_apply_after_those_of_the_channel(world: World) -> None:
    opened = await (await serve(world)).create()
    admitted: list[object] = []
    opened.add_admission(lambda run, origin: admitted.append(run))
    guard_topic(opened, signed_only=False)
    run = Run(b"s", [b"x"])
    await opened.partition(run.partition).append(run)
    assert admitted == [run]
