"""Jobs over a topic of a million messages in a real broker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import penstock.spark
from penstock.cli.pipeline import pipeline
from penstock.client import SyncClient
from penstock.spark.pipelines import JobFailed, audit_topic, latest_messages, replay_topic
from tests.integration.process import PENSTOCK, clean_environment
from tests.spark.conftest import HOT, MILLION, QUICK_JVM, SUBJECTS
from tests.spark.topics import fetched, messages, plan_of, uploaded


def command(url: str, *arguments: str) -> Result:
    """Run a command on the active session."""
    return CliRunner().invoke(pipeline, [*arguments, "--url", url, "--master", "local[2]"])


@pytest.mark.feature("S08")
def test_an_audit_of_a_sound_topic_checks_everything_and_finds_nothing(
    spark: SparkSession, million: str
) -> None:
    found = audit_topic(spark, million)
    assert found.sound
    assert found.rows + found.hot_messages == MILLION + HOT
    assert not [finding for finding in found.findings if not finding.harmless]


@pytest.mark.feature("S06")
def test_the_newest_message_of_every_subject(spark: SparkSession, million: str) -> None:
    found = (
        latest_messages(penstock.spark.topic(spark, million)).select("subject", "payload").collect()
    )
    told = {row["subject"]: int(bytes(row["payload"])) for row in found}
    assert len(found) == SUBJECTS
    newest = {n % SUBJECTS: n for n in range(MILLION + HOT - SUBJECTS, MILLION + HOT)}
    assert told == {f"k.{key}": number for key, number in newest.items()}


@pytest.mark.feature("S06")
def test_deleted_keys_of_a_key_value_bucket_have_no_newest_message(
    spark: SparkSession, client: SyncClient, name: str
) -> None:
    client.create_topic(name)
    deleted, purged = (f"NATS/1.0\r\nKV-Operation: {verb}\r\n\r\n" for verb in ("DEL", "PURGE"))
    rows = [
        {"subject": "a", "payload": b"1"},
        {"subject": "b", "payload": b"1"},
        {"subject": "c", "payload": b"1"},
        {"subject": "a", "payload": b"", "headers": deleted.encode()},
        {"subject": "b", "payload": b"", "headers": purged.encode()},
        {"subject": "b", "payload": b"2"},
        {"subject": "c", "payload": b"2", "headers": b"NATS/1.0\r\nk: KV-Operation: DEL\r\n\r\n"},
    ]
    client.push(name, rows)
    found = (
        latest_messages(penstock.spark.topic(spark, name)).select("subject", "payload").collect()
    )
    assert {row["subject"]: bytes(row["payload"]) for row in found} == {"b": b"2", "c": b"2"}


@pytest.mark.feature("S07")
def test_a_named_replay_of_a_filtered_window_is_in_order_and_done_once(
    spark: SparkSession, client: SyncClient, million: str, name: str
) -> None:
    client.create_topic(name)
    options: dict[str, Any] = {"startingOffsets": 990_000, "endingOffsets": MILLION + 100}
    condition = "subject like 'k.1%'"
    would = replay_topic(spark, million, name, where=condition, dry_run=True, **options)
    assert client.partitions(name)[0].next_offset == 0
    for _ in range(2):
        done = replay_topic(spark, million, name, where=condition, name="once", **options)
    expected = [n for n in range(990_000, MILLION + 100) if str(n % SUBJECTS).startswith("1")]
    assert done == would == (len(expected),)
    found = fetched(client, name)
    assert [int(row["payload"]) for row in found] == expected
    assert [row["subject"].decode() for row in found] == [f"k.{n % SUBJECTS}" for n in expected]


@pytest.mark.feature("S07")
def test_a_query_turns_a_million_messages_into_rows(
    spark: SparkSession, client: SyncClient, million: str, name: str
) -> None:
    client.create_topic(name, ["subject_of:string", "number:uint32"])
    number = "cast(cast(payload as string) as bigint) as number"
    query = f"select subject as subject_of, {number} from source"
    assert replay_topic(spark, million, name, sql=query).messages == MILLION + HOT
    table = penstock.spark.topic(spark, name)
    told = table.agg(F.count("*"), F.countDistinct("number"), F.max("offset")).collect()[0]
    assert tuple(told) == (MILLION + HOT, MILLION + HOT, MILLION + HOT - 1)


@pytest.mark.feature("S13")
def test_a_replay_that_does_not_match_its_target_is_refused_with_the_reason(
    spark: SparkSession, client: SyncClient, million: str, name: str
) -> None:
    client.create_topic(name, ["n:int64"])
    with pytest.raises(Exception, match="has no column 'subject'"):
        replay_topic(spark, million, name)
    with pytest.raises(Exception, match="does not exist"):
        replay_topic(spark, million, f"{name}x")


@pytest.mark.feature("S08")
def test_planted_damage_of_each_kind_is_found(
    spark: SparkSession, client: SyncClient, name: str, url: str
) -> None:
    store = plan_of_store(client, name)
    objects = plan_of(client, name).objects
    first, second, third = (store / item.key for item in objects)
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.rename(second.with_suffix(".away"))
    stray = third.with_name(third.name.replace("-200-299-", "-300-399-"))
    assert stray != third
    stray.write_bytes(third.read_bytes())
    found = audit_topic(spark, name)
    told = {(finding.kind, finding.object) for finding in found.findings}
    assert not found.sound
    assert {("damaged", objects[0].key), ("missing", objects[1].key)} <= told
    assert ("stale", f"{objects[2].key.rpartition('/')[0]}/{stray.name}") in told
    ended = command(url, "audit", name)
    assert ended.exit_code == 1
    assert "NOT SOUND" in ended.stdout
    assert f"missing: {objects[1].key}: it is not in the bucket" in ended.stdout


def plan_of_store(client: SyncClient, name: str) -> Path:
    """Create a topic of three objects; returns its name and their directory."""
    client.create_topic(name)
    for first in (0, 100, 200):
        client.push(name, messages(first, 100))
        uploaded(client, name)
    plan = plan_of(client, name)
    assert plan.store is not None
    assert len(plan.objects) == 3
    return Path(plan.store.root)


@pytest.mark.feature("S06", "S07", "S13")
def test_commands_print_their_result_in_one_line(
    spark: SparkSession, client: SyncClient, url: str, million: str, name: str, tmp_path: Path
) -> None:
    client.create_topic(name)
    into = tmp_path / "latest"
    done = command(url, "latest", million, "--into", str(into), "--json")
    assert json.loads(done.stdout) == {"rows": SUBJECTS, "into": str(into)}
    shown = command(url, "latest", million, "-o", "endingOffsets=10").stdout.splitlines()
    assert {json.loads(line)["subject"] for line in shown} == {f"k.{n}" for n in range(10)}
    done = command(url, "replay", million, name, "-o", "endingOffsets=1000", "--dry-run")
    assert done.stdout == "1000 messages would be copied\n"
    wrong = command(url, "replay", million, name, "-o", "endingOffsets")
    assert (wrong.exit_code, "must be written KEY=VALUE" in wrong.output) == (2, True)
    failed = command(url, "replay", million, name, "--where", "nothing > 1")
    assert isinstance(failed.exception, JobFailed)
    assert "nothing" in str(failed.exception)
    assert len(str(failed.exception).splitlines()) == 1


@pytest.mark.feature("S12", "S13")
def test_a_command_starts_a_spark_session(url: str) -> None:
    """The default master is this machine; errors are one line."""
    settings = ("spark.driver.memory=1g", f"spark.driver.extraJavaOptions={QUICK_JVM}")
    confs = [part for setting in settings for part in ("--conf", setting)]
    done = subprocess.run(
        [PENSTOCK, "pipeline", "audit", "nowhere", "--url", url, *confs],
        capture_output=True,
        text=True,
        timeout=110,
        env=clean_environment(),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("error: topic tenants/default/namespaces")
