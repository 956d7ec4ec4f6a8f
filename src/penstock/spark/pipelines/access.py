"""What every pipeline tells the source and the sink: the store, its token, and how many tasks Spark runs at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark.options import token_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def store_options(url: str, token: str | None = None) -> dict[str, str]:
    """The URL, and the token of this process: the processes of a cluster, or of Spark Connect, have other environments."""
    token = token or token_for(url)
    return {"url": url} if token is None else {"url": url, "token": token}


def source_options(spark: SparkSession, url: str, queue: str, *, token: str | None = None, **more: str) -> dict[str, Any]:
    """``more`` are other options of the source, which may replace these."""
    known: dict[str, Any] = {**store_options(url, token), "queue": queue}
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        known["parallelism"] = spark.sparkContext.defaultParallelism
    return known | more
