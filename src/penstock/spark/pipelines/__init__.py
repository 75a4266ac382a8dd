"""Jobs over whole topics, as functions of a Spark session; `penstock pipeline` runs them."""

from penstock.spark.pipelines.audit import AuditFinding, TopicAudit, audit_topic
from penstock.spark.pipelines.compact import CompactionResult, compact_topic
from penstock.spark.pipelines.declared import run_pipeline
from penstock.spark.pipelines.latest import json_lines, latest_messages
from penstock.spark.pipelines.progress import JobFailed, spark_job
from penstock.spark.pipelines.publish import (
    DeltaTable,
    IcebergTable,
    PublishedTable,
    PublishResult,
    TableChanged,
    publish_topic,
)
from penstock.spark.pipelines.replay import ReplayResult, replay_topic
from penstock.spark.pipelines.report import TopicReport, write_report

__all__ = [
    "AuditFinding",
    "CompactionResult",
    "DeltaTable",
    "IcebergTable",
    "JobFailed",
    "PublishResult",
    "PublishedTable",
    "ReplayResult",
    "TableChanged",
    "TopicAudit",
    "TopicReport",
    "audit_topic",
    "compact_topic",
    "json_lines",
    "latest_messages",
    "publish_topic",
    "replay_topic",
    "run_pipeline",
    "spark_job",
    "write_report",
]
