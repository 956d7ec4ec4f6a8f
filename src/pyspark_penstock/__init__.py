"""What `spark.read.format("penstock")` finds with no registration: PySpark looks for modules named pyspark_<name>."""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
