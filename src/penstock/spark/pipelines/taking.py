"""The queues of a declared pipeline: taking their messages, and settling them when every sink has them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.spark.pipelines import landing
from penstock.spark.pipelines.access import source_options
from penstock.spark.pipelines.declaration import Source
from penstock.spark.pipelines.draining import PAUSE
from penstock.spark.pipelines.landing import Landing
from penstock.spark.pipelines.limits import BatchLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("penstock.spark")

README = """This is the checkpoint of the pipeline {name}: keep it as long as the pipeline.

It knows which messages each sink has had. Messages that are not yet in every sink are in the folder "landed", and stay
claimed in their queues for this checkpoint. If you delete this folder, nobody comes for them: `penstock readers QUEUE`
shows them, and `penstock readers QUEUE --give-up READER` makes them visible again. Sinks that had them already then get
them twice. Messages of a queue with ordered groups leave the queue when they are landed: those are only here.
"""


@dataclass(frozen=True, slots=True)
class Take:
    """A queue, and where its messages are landed."""

    pipeline: str
    source: Source
    url: str
    home: Path
    limits: BatchLimits | None = None

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def checkpoint(self) -> Path:
        return self.home / "take" / self.name

    @property
    def landed(self) -> Path:
        return self.home / "landed" / self.name

    @property
    def is_empty(self) -> bool:
        """Whether all that was landed is in the sinks and settled."""
        return next(self.landed.glob("*/*.parquet"), None) is None

    @property
    def _queue(self) -> str:
        assert self.source.queue is not None
        return self.source.queue

    @property
    def _readers(self) -> str:
        """How the names of this pipeline's readers begin, whatever their checkpoints."""
        return f"run-{re.sub('[^A-Za-z0-9_-]', '_', self.pipeline)[:40]}-{self.name[:40]}-"

    def stream(self, spark: SparkSession) -> DataStreamWriter:
        options = source_options(spark, self.url, self._queue, **self.source.options) | {"exact": True}
        options["readerPrefix"] = self._readers
        options["pauseFile"] = str(self.home / PAUSE)
        with penstock.open(self.url) as broker:
            # The next message of a group is handed out when the one before it is settled, so that cannot wait for the sinks.
            options["settle"] = broker.queue(self._queue).settings.groups
        stream = spark.readStream.format("penstock").options(**options).load()
        place = Landing(str(self.landed), str(self.home / "staged" / self.name), str(self.checkpoint), self.limits)
        return stream.writeStream.foreachBatch(place)

    def check_abandoned(self) -> None:
        """Raise an error if another checkpoint of this pipeline holds messages: its sinks may have had some of them."""
        own = landing.reader_of(self.checkpoint)
        with penstock.open(self.url) as broker:
            for reader, claims in broker.queue(self._queue).readers().items():
                held = sum(claim.size for claim in claims if claim.confirmed)
                if held and reader != own and reader.startswith(self._readers):
                    raise BadInput(
                        f"queue {self._queue!r} holds {held} messages for another checkpoint of this pipeline. Run it with "
                        f"that one; if it is gone, `penstock readers {self._queue} --give-up {reader}` makes them visible "
                        "again. To run two such pipelines side by side, give them different names"
                    )

    def tidy(self, checkpoints: Sequence[Path], sync: Callable[[], None]) -> None:
        """Settle and remove what all these queries have committed. First, what they have written is synced."""
        folders = landing.finished(self.landed, self.checkpoint, checkpoints)
        if not folders:
            return
        sync()
        offsets = [offset for offset in map(landing.offset_of, folders) if offset is not None]
        if offsets:
            with penstock.open(self.url) as broker:
                try:
                    broker.queue(self._queue).settle(offsets[-1]["reader"], offsets[-1]["epoch"])
                except QueueNotFound:
                    logger.warning("queue %r is gone, and with it what the pipeline had read of it", self._queue)
        landing.remove(self.landed, folders)
