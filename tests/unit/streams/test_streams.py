"""Streams are found, created, changed and deleted, and survive a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from penstock.log.directories import LogCreation, NewLog
from penstock.log.files.wal_files import ActiveFile
from penstock.metadata import Put
from penstock.model import names
from penstock.model.resources import Topic, TopicSpec
from penstock.model.subjects import Filter
from penstock.streams.stream import Stream
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from tests.broker.storage import KEYS, World
from tests.broker.streams import Streaming, block, start_again
from tests.broker.topics import BY_REGION, serve


async def test_a_stream_is_a_topic_and_stores_its_subjects(made: Streaming) -> None:
    stream = await made.create("orders", subjects=["orders.>", "o"])
    assert made.streams.get("orders") is stream
    assert made.streams.names() == ["orders"]
    assert [one.name for one in made.streams] == ["orders"]
    assert made.served.topics.get(names.topic("orders")).log is stream.opened.log
    for subject in (b"orders.new", b"o"):
        assert made.streams.route(subject) is not None
    for subject in (b"orders", b"other", b"o.x"):
        assert made.streams.route(subject) is None


async def test_creating_a_stream_again_succeeds_with_the_same_configuration_only(
    made: Streaming,
) -> None:
    stream = await made.create("s", subjects=["a"], max_msgs=5)
    assert await made.create("s", subjects=["a"], max_msgs=5) is stream
    with pytest.raises(ApiError) as refused:
        await made.create("s", subjects=["a"], max_msgs=6)
    assert refused.value.err_code == 10058


async def test_two_streams_never_have_one_subject(made: Streaming) -> None:
    first = await made.create("s", subjects=["a.*"])
    with pytest.raises(ApiError) as refused:
        await made.create("t", subjects=["a.b"])
    assert refused.value.err_code == 10065
    assert made.streams.names() == ["s"]
    await made.create("t", subjects=["b"])
    with pytest.raises(ApiError) as refused:
        await made.streams.update(replace(first.config, subjects=("a.*", "b")))
    assert refused.value.err_code == 10065
    await made.publish("b", b"x")
    assert first.messages == 0


async def test_concurrent_creations_do_not_wait_for_one_another(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, all_begun = made.served.topics.create_topic, asyncio.Barrier(20)

    async def with_the_others(spec: TopicSpec, beside: Sequence[Put]) -> Topic:
        await all_begun.wait()
        return await create(spec, beside)

    monkeypatch.setattr(made.served.topics, "create_topic", with_the_others)
    found = await asyncio.gather(*(made.create(f"s{n}", subjects=[f"s.{n}"]) for n in range(20)))
    assert [stream.name for stream in found] == [f"s{n}" for n in range(20)]
    assert made.streams.names() == sorted(f"s{n}" for n in range(20))


async def test_conflicting_creations_are_serialised(
    made: Streaming,
) -> None:
    first, same, overlapping, unlike = await asyncio.gather(
        made.create("s", subjects=["a.*"]),
        made.create("s", subjects=["a.*"]),
        made.create("t", subjects=["a.>"]),
        made.create("s", subjects=["c"]),
        return_exceptions=True,
    )
    assert isinstance(first, Stream)
    assert same is first
    assert isinstance(overlapping, ApiError)
    assert overlapping.err_code == 10065
    assert isinstance(unlike, ApiError)
    assert unlike.err_code == 10058


async def test_an_update_and_a_deletion_wait_for_the_creation(
    made: Streaming,
) -> None:
    config = normalised(StreamConfig(name="s", subjects=("a",)))
    _, changed, gone = await asyncio.gather(
        made.streams.create(config),
        made.streams.update(replace(config, subjects=("b",))),
        made.streams.delete("s"),
    )
    assert (changed.config.subjects, gone) == (("b",), None)
    await asyncio.gather(made.streams.create(config), made.streams.delete("s"))
    assert made.streams.names() == []


async def test_a_changed_configuration_is_served_from_then_on(made: Streaming) -> None:
    stream = await made.create("s", subjects=["a"])
    changed: list[int] = []
    made.streams.watch(routes_changed=lambda: changed.append(1))
    config = replace(stream.config, subjects=("b",), max_msgs=1, duplicate_window=0)
    assert await made.streams.update(config) is stream
    assert changed
    assert made.streams.route(b"a") is None
    for text in (b"1", b"2"):
        await made.publish("b", text, block("Nats-Msg-Id: same"))
    assert (stream.messages, stream.last_seq) == (1, 2)
    with pytest.raises(ApiError) as refused:
        await made.streams.update(replace(config, name="other"))
    assert refused.value.err_code == 10059


async def test_a_deleted_stream_may_be_created_again(made: Streaming) -> None:
    gone: list[str] = []
    made.streams.watch(closed=lambda stream: gone.append(stream.name))
    await made.create("s", subjects=["a"])
    await made.publish("a", b"x")
    await made.streams.delete("s")
    assert gone == ["s"]
    assert made.streams.get("s") is None
    assert made.streams.route(b"a") is None
    with pytest.raises(ApiError) as refused:
        await made.streams.delete("s")
    assert refused.value.err_code == 10059
    again = await made.create("s", subjects=["b"])
    assert (again.messages, again.config.subjects) == (0, ("b",))


async def test_a_restart_keeps_configuration_messages_and_sequences(made: Streaming) -> None:
    stream = await made.create(
        "s", subjects=["a.>"], max_msgs=3, discard="old", description="mine", first_seq=10
    )
    for number in range(5):
        await made.publish("a.b", b"%d" % number)
    await made.streams.update(replace(stream.config, max_msgs_per_subject=2))
    config, facts = stream.config, (stream.first_seq, stream.last_seq, stream.messages)
    assert facts == (13, 14, 2)
    made, stream = await start_again(made, "s")
    assert stream.config == config
    assert (stream.first_seq, stream.last_seq, stream.messages) == facts
    assert await made.publish("a.c", b"x") == {"stream": "s", "seq": 15}
    made.close()


async def test_a_topic_without_a_stream_record_is_a_stream_of_its_own_subject(
    made: Streaming,
) -> None:
    told: list[Stream] = []
    made.streams.watch(opened=told.append)
    opened = await made.served.create(TopicSpec(names.topic("plain")))
    stream = made.streams.get("plain")
    assert told == [stream]
    assert stream is not None
    assert stream.opened.log is opened.log
    assert stream.config.subjects == ("plain",)
    assert await made.publish("plain", b"x") == {"stream": "plain", "seq": 1}
    await made.create("s", subjects=["taken"])
    await made.served.create(TopicSpec(names.topic("taken")))
    other = made.streams.get("taken")
    assert other is not None
    assert other.config.subjects == ()
    assert await made.publish("taken", b"x") == {"stream": "s", "seq": 1}


async def test_topics_of_other_namespaces_are_no_streams(made: Streaming) -> None:
    await made.served.admin.create_tenant("other")
    await made.served.admin.create_namespace(names.Namespace("other", "n"))
    await made.served.create(TopicSpec(names.TopicName("other", "n", "t")))
    assert made.streams.names() == []


async def test_an_unreadable_record_results_in_a_plain_stream(
    made: Streaming, world: World
) -> None:
    await made.create("s", subjects=["a"], max_msgs=1)
    await made.publish("a", b"x")
    key = KEYS.stream(names.topic("s"))
    await world.metadata.transaction([], [Put(key, b"\xff not a configuration")])
    with capture_logs() as told:
        made, stream = await start_again(made, "s")
    assert [event["event"] for event in told if event["log_level"] == "error"] == [
        "stream_record_damaged"
    ]
    assert (stream.messages, stream.config.subjects) == (1, ("s",))
    made.close()


async def test_a_stream_owned_elsewhere_is_not_changed(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["a"])
    await world.depose(names.topic("s"))
    with pytest.raises(ApiError, match="another broker owns"):
        await made.streams.update(replace(stream.config, max_msgs=1))
    assert stream.config.max_msgs == -1


async def test_configurations_are_compared_in_stored_form(made: Streaming) -> None:
    asked = normalised(StreamConfig(name="s", subjects=("a",)))
    stream = await made.streams.create(asked)
    assert stream.config == asked


async def test_a_stream_cannot_have_the_name_of_an_unsuitable_topic(
    made: Streaming, world: World
) -> None:
    await made.served.create(BY_REGION)
    name = BY_REGION.name.topic
    with pytest.raises(ApiError) as refused:
        await made.create(name, subjects=["a"])
    assert refused.value.err_code == 10058
    assert await world.metadata.get(KEYS.stream(BY_REGION.name)) is None
    assert made.streams.route(b"a") is None


async def test_a_stream_that_another_broker_serves_keeps_its_configuration(
    made: Streaming, world: World
) -> None:
    stream = await made.create("s", subjects=["a"], max_msgs=5)
    kept = await world.metadata.get(KEYS.stream(names.topic("s")))
    other = Streaming(await serve(world, name="b2"))
    assert other.streams.get("s") is None
    with pytest.raises(ApiError) as refused:
        await other.create("s", subjects=["b"])
    assert refused.value.err_code == 10058
    with pytest.raises(ApiError) as refused:
        await other.create("s", subjects=["a"], max_msgs=5)
    assert refused.value.err_code == 10049
    assert await world.metadata.get(KEYS.stream(names.topic("s"))) == kept
    assert made.streams.get("s") is stream
    other.close()


async def test_a_stream_may_begin_at_a_high_sequence(made: Streaming) -> None:
    stream = await made.create("s", subjects=["a"], first_seq=5_000_000)
    assert await made.publish("a", b"x") == {"stream": "s", "seq": 5_000_000}
    assert (stream.first_seq, stream.last_seq, stream.messages) == (5_000_000, 5_000_000, 1)


@pytest.mark.parametrize("first_seq", [1 << 31, 1 << 62, (1 << 63) - 1])
async def test_a_stream_begins_at_any_sequence_and_keeps_it_after_a_crash(
    made: Streaming, first_seq: int
) -> None:
    stream = await made.create("s", subjects=["a"], first_seq=first_seq, max_bytes=1 << 20)
    assert (stream.first_seq, stream.last_seq, stream.messages) == (first_seq, first_seq - 1, 0)
    made, stream = await start_again(made, "s")
    assert (stream.first_seq, stream.last_seq, stream.messages) == (first_seq, first_seq - 1, 0)
    assert await made.publish("a", b"x") == {"stream": "s", "seq": first_seq}
    made, stream = await start_again(made, "s")
    await stream.measured()
    assert (stream.first_seq, stream.last_seq, stream.messages) == (first_seq, first_seq, 1)
    assert (stream.size_bytes, stream.deleted_count, stream.deleted()) == (32, 0, [])
    await made.served.broker.tiers.flush(stream.topic.name)
    assert (await stream.get(first_seq - 1)).payloads == [b"x"]
    assert await stream.last(Filter.parse(b"a")) == first_seq - 1
    made.close()


async def test_a_stream_has_its_first_sequence_after_a_crash_before_its_log_exists(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dying(self: LogCreation, newborn: NewLog) -> ActiveFile:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(LogCreation, "create", dying)
        with pytest.raises(ApiError):
            await made.create("s", subjects=["a"], first_seq=1 << 40)
    made, stream = await start_again(made, "s")
    assert (stream.first_seq, stream.last_seq) == (1 << 40, (1 << 40) - 1)
    assert await made.publish("a", b"x") == {"stream": "s", "seq": 1 << 40}
    made.close()


async def test_a_stream_ends_at_the_highest_possible_sequence(made: Streaming) -> None:
    await made.create("s", subjects=["a"], first_seq=(1 << 63) - 1)
    assert await made.publish("a", b"x") == {"stream": "s", "seq": (1 << 63) - 1}
    answer = await made.publish("a", b"y")
    assert isinstance(answer, dict)
    assert "error" in answer


async def test_a_purge_beyond_the_end_moves_the_next_sequence(made: Streaming) -> None:
    stream = await made.create("s", subjects=["a"])
    for _ in range(3):
        await made.publish("a")
    await stream.purge(1 << 60, past_end=True)
    assert (stream.first_seq, stream.last_seq, stream.messages) == ((1 << 60) + 1, 1 << 60, 0)
    assert await made.publish("a") == {"stream": "s", "seq": (1 << 60) + 1}
    made, stream = await start_again(made, "s")
    await stream.measured()
    assert (stream.first_seq, stream.messages, stream.size_bytes) == ((1 << 60) + 1, 1, 32)
    made.close()
