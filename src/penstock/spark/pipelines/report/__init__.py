"""Reports on a topic: tables of statistics, and an HTML page that shows them with plots."""

from penstock.spark.pipelines.report.report import TopicReport, write_report

__all__ = ["TopicReport", "write_report"]
