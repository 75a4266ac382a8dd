"""Registers the data source `penstock`: Spark imports every installed module called `pyspark_*`."""

from penstock.spark import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
