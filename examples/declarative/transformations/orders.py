"""A queue becomes a table, and the table's rows flow on into another queue."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
URL = os.environ.get("PENSTOCK_STORE", "sqlite:////data/shop.db")


@dp.table
def orders() -> DataFrame:
    source = spark.readStream.format("penstock").option("url", URL).option("queue", "orders")
    return source.load().selectExpr("id", "cast(body AS string) AS item", "sent_at")


dp.create_sink("packing", "penstock", {"url": URL, "queue": "packing"})


@dp.append_flow(target="packing")
def pack() -> DataFrame:
    return spark.readStream.table("orders").selectExpr("concat('pack ', item) AS body", "id AS key")
