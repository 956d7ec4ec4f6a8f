"""The worked example runs from nothing, and accounts for every order."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[3] / "examples" / "shop" / "run.py"


def test_the_example_accounts_for_every_order(spark: SparkSession, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("shop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shop)
    account = shop.main(tmp_path, spark)
    assert account["ordered"] == account["sold"] + account["dead"]
    assert account["dead"] > 0
    assert (account["left"], account["late"]) == (0, 0)
    assert "<svg" in (tmp_path / "report.html").read_text()
