"""Where Spark looks for the data source `penstock`: it imports modules called `pyspark_*`."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
