"""Messages with header fields share an append and are answered as if each were published alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from penstock.streams import single_publishes
from penstock.streams.stream import Stream
from penstock.wire.parser import Publishes
from tests.broker.streams import Streaming, appended_runs, block
from tests.eventually import eventually

Message = tuple[bytes, bytes, bytes]
"""Subject, header block and payload."""


async def publish_run(made: Streaming, messages: Sequence[Message]) -> list[dict[str, object]]:
    """Publish messages as one run; returns their answers."""
    publisher = made.streams.route(messages[0][0])
    assert publisher is not None
    replies = [b"r%d.%d" % (len(made.answers), number) for number in range(len(messages))]
    subjects, blocks, payloads = (list(column) for column in zip(*messages, strict=True))
    publisher.publish(Publishes(subjects, replies, blocks, payloads), lambda: None)
    await publisher.drained()
    await publisher.stream.opened.flush()

    async def answered() -> bool:
        return all(reply in made.answers for reply in replies)

    await eventually(answered)
    return [made.answers[reply] for reply in replies]


async def contents(stream: Stream) -> list[tuple[int, bytes, bytes, bytes]]:
    await stream.opened.flush()
    found: list[tuple[int, bytes, bytes, bytes]] = []
    async for rows in stream.rows_from(0, 1000):
        blocks = rows.headers or [b""] * rows.count
        found += zip(rows.offsets, rows.subjects, blocks, rows.payloads, strict=True)
    return found


@pytest.mark.feature("P03")
async def test_messages_of_a_run_are_appended_together(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s.>"])
    runs = appended_runs(stream, monkeypatch)
    expects = "Nats-Expected-Last-Subject-Sequence"
    answers = await publish_run(
        made,
        [
            (b"s.a", block(f"{expects}: 0"), b"1"),
            (b"s.b", block("Nats-Msg-Id: i"), b"2"),
            (b"s.a", block(f"{expects}: 0"), b"refused"),
            (b"s.a", block(f"{expects}: 1"), b"3"),
            (b"s.b", block("Nats-Msg-Id: i"), b"duplicate"),
            (b"s.c", block("Nats-Expected-Last-Sequence: 3"), b"4"),
            (b"s.c", block("Nats-Expected-Last-Msg-Id: x"), b"refused"),
        ],
    )
    assert runs == [4]
    assert [answer["seq"] for answer in answers] == [1, 2, 0, 3, 2, 4, 0]
    assert answers[4] == {"stream": "s", "seq": 2, "duplicate": True}
    assert [row[3] for row in await contents(stream)] == [b"1", b"2", b"3", b"4"]


async def test_a_stage_is_bounded(made: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_publishes, "STAGE_MESSAGES_MAX", 4)
    monkeypatch.setattr(single_publishes, "STAGE_BYTES_MAX", 100)
    stream = await made.create("s", subjects=["s"])
    runs = appended_runs(stream, monkeypatch)
    small = [(b"s", block(f"Nats-Msg-Id: {number}"), b"x") for number in range(6)]
    large = [(b"s", block(f"Nats-Msg-Id: large {number}"), b"x" * 100) for number in range(2)]
    await publish_run(made, small + large)
    assert runs == [4, 3, 1]


async def test_messages_beyond_a_limit_are_refused_and_no_others(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s"], max_msgs=2, discard="new")
    messages = [(b"s", block(f"Nats-Msg-Id: {number}"), b"%d" % number) for number in range(4)]
    answers = await publish_run(made, messages)
    assert ["error" in answer for answer in answers] == [False, False, True, True]
    assert [row[3] for row in await contents(stream)] == [b"0", b"1"]


CONFIGS: list[dict[str, object]] = [
    {"allow_rollup_hdrs": True},
    {"allow_rollup_hdrs": True, "max_msgs_per_subject": 1, "discard": "new"},
    {"max_msgs": 3},
    {"max_msgs": 4, "discard": "new"},
    {"max_bytes": 300},
    {"retention": "interest"},
    {"max_msg_size": 60, "duplicate_window": 0},
    {"allow_msg_counter": True},
    {"allow_msg_counter": True, "max_msgs": 2},
    {"allow_msg_counter": True, "max_msg_size": 45},
]


def random_messages(choose: random.Random, name: str, *, counters: bool) -> list[Message]:
    fields = [
        *("Nats-Msg-Id: 1", "Nats-Msg-Id: 2", "Nats-Expected-Last-Msg-Id: 1"),
        *("Nats-Rollup: sub", "Nats-Rollup: all", f"Nats-Expected-Stream: {name}", "X: y"),
        *(f"Nats-Expected-Last-Sequence: {seq}" for seq in range(4)),
        *(f"Nats-Expected-Last-Subject-Sequence: {seq}" for seq in range(4)),
    ]
    others = [f"Nats-Expected-Last-Subject-Sequence-Subject: {name}.{of}" for of in ("a", ">")]
    messages: list[Message] = []
    for number in range(12):
        chosen = choose.sample(fields, choose.choice([0, 1, 1, 1, 2]))
        if any("Subject-Sequence" in field for field in chosen) and choose.random() < 0.3:
            chosen.append(choose.choice(others))
        if counters and choose.random() < 0.9:
            chosen = ["Nats-Incr: 3", *(["Nats-Msg-Id: 1"] if choose.random() < 0.2 else [])]
        payload = b"" if counters else b"%d" % number * choose.choice([1, 1, 30])
        subject = f"{name}.{choose.choice('abc')}".encode()
        messages.append((subject, block(*chosen) if chosen else b"", payload))
    return messages


@pytest.mark.parametrize("config", CONFIGS, ids=str)
async def test_a_run_has_the_effect_of_single_publishes(
    made: Streaming, config: dict[str, object]
) -> None:
    """Random messages are published to two streams: as one run, and each after the other."""
    for seed in range(20):
        choose = random.Random(seed)
        results: list[object] = []
        for stream_number in range(2):
            name = f"s{seed}x{stream_number}"
            stream = await made.create(name, subjects=[f"{name}.>"], **config)
            if config.get("retention") == "interest":
                stream.require_interest(lambda subject: subject.endswith(b"a"))
            choose.seed(seed)
            counters = "allow_msg_counter" in config
            messages = random_messages(choose, name, counters=counters)
            if stream_number:
                answers = await publish_run(made, messages)
            else:
                answers = [(await publish_run(made, [message]))[0] for message in messages]
            stored = [str(row).replace(name, "name") for row in await contents(stream)]
            results.append(([str(answer).replace(name, "name") for answer in answers], stored))
        assert results[0] == results[1], seed
