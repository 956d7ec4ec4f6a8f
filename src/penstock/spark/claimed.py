"""A batch read that can be repeated: it claims messages under a name and a number; until they are settled, they are the same.

partitions   claim all queues, tentatively; then confirm these claims. From the first confirmation on, no queue is claimed any
             more, so a second read finds what the first has found, though it died in between
read         the messages of a claim, by place
(the caller) `queue.settle(reader, epoch)` when the rows are where they should be
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.broker import Broker
from penstock.errors import ClaimError, ClaimLapsed
from penstock.message import Claim
from penstock.queue.protocol import Queue
from penstock.spark import columns, reading
from penstock.spark.insisting import insistent
from penstock.spark.options import ReadOptions


@dataclass
class ClaimedPart(InputPartition):
    """A part of the claims, by place: of one queue, or of several small ones."""

    pieces: list[reading.QueuePart]


class ClaimedRead(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        assert options.reader is not None
        assert options.epoch is not None
        self._options = options
        self._schema = schema
        self._reader, self._epoch = options.reader, options.epoch

    @insistent
    def partitions(self) -> list[ClaimedPart]:
        with self._options.open() as broker:
            claims = self._claims(broker)
            if not any(claim.confirmed for claim in claims.values()):
                claims = self._claim(broker)
            sizes = [(name, size) for name in sorted(claims) if (size := self._confirm(broker.queue(name)))]
        among = reading.parts(sum(size for _, size in sizes), self._options.min_partitions, self._options.parallelism)
        return [ClaimedPart(pieces) for pieces in reading.cut(sizes, among)]

    def read(self, partition: ClaimedPart) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        if not isinstance(partition, ClaimedPart):  # Spark passes a partition of its own if we returned none
            return
        schema = columns.arrow_schema(self._schema)
        counts = yield from reading.claim(self._options, partition.pieces, self._reader, self._epoch, schema)
        for piece, found in zip(partition.pieces, counts, strict=True):
            if found < piece.stop - piece.start:
                raise ClaimError(
                    f"claim {self._epoch} of reader {self._reader!r} on queue {piece.queue!r} has {found} of the "
                    f"{piece.stop - piece.start} messages from place {piece.start} on: it was settled or given up meanwhile"
                )

    def _claims(self, broker: Broker) -> dict[str, Claim]:
        """The claims of an earlier read; `ReaderSetBack` if they are settled."""
        found = {}
        for name in self._options.queues(broker):
            for claim in broker.queue(name).readers().get(self._reader, ()):
                if claim.epoch == self._epoch:
                    found[name] = claim
        return found

    def _claim(self, broker: Broker) -> dict[str, Claim]:
        found: dict[str, Claim] = {}
        for name in self._options.queues(broker):
            left = self._options.max_messages - sum(claim.size for claim in found.values())
            if left > 0:
                queue = broker.queue(name)
                ttl, most = self._options.claim_timeout, self._options.max_bytes
                found[name] = queue.claim(self._reader, self._epoch, left, ttl=ttl, max_bytes=most)
        return found

    def _confirm(self, queue: Queue) -> int:
        try:
            return queue.confirm(self._reader, self._epoch).size
        except ClaimLapsed:  # of a read that died before it had confirmed all: nobody has seen these
            return 0
