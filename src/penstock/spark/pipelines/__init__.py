"""Ready-made pipelines around queues, each a plain function: `docs/pipelines.md` shows them, `penstock pipeline` runs them."""

from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.load import load
from penstock.spark.pipelines.move import dedupe, move

__all__ = ["archive", "dedupe", "load", "move"]
