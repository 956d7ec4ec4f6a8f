"""Ready-made pipelines around queues, each a plain function. `docs/pipelines.md` shows them, `penstock pipeline` runs them."""

from penstock.errors import MissingExtra

try:
    import pyspark  # noqa: F401
except ImportError as error:
    raise MissingExtra("a pipeline", "spark") from error

from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.declared import run
from penstock.spark.pipelines.load import load
from penstock.spark.pipelines.move import dedupe, move
from penstock.spark.pipelines.redrive import redrive
from penstock.spark.pipelines.replay import replay
from penstock.spark.pipelines.report import report
from penstock.spark.pipelines.settled import archive_history

__all__ = ["archive", "archive_history", "dedupe", "load", "move", "redrive", "replay", "report", "run"]
