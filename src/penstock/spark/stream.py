"""A stream from queues, exactly once, by the named claims of `penstock.queue.named_claims`.

initialOffset   {"reader": "spark-<uuid>", "epoch": 0, "claims": {}}          the checkpoint is the reader
latestOffset    settle all up to the start; claim the next as epoch + 1, tentatively: {…, "claims": {queue: how many}}
(Spark logs the offset)
partitions      confirm the claims, which never lapse from then on
read            the messages of a claim, by place: a replay reads the same ones in the same order
(Spark commits the batch)
commit          settle; the last batch of all is settled by the latestOffset that finds nothing more

Each of these can be repeated, and is, while the store is away.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.broker import Broker
from penstock.errors import BadInput, ClaimError, ClaimLapsed, QueueNotFound, ReaderSetBack
from penstock.message import Claim
from penstock.spark import columns, reading
from penstock.spark.insisting import insistent
from penstock.spark.options import ReadOptions
from penstock.spark.waiting import oldest_wait

logger = logging.getLogger("penstock.spark")

Offset = dict[str, Any]
COUNT_EVERY = 10.0
"""Seconds between two counts of waiting messages, which scan the whole index; the age of the oldest is reported each time."""


class DataLost(ClaimError):
    """The checkpoint and the queue do not match; the stream cannot continue exactly once."""


@dataclass
class Slice(InputPartition):
    """A part of the claims of one epoch, by place: of one queue, or of several small ones."""

    reader: str
    epoch: int
    pieces: list[reading.QueuePart]


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.view != "messages":
            raise BadInput(f"a stream reads messages; the view {options.view!r} is for batches (spark.read)")
        if options.reader is not None:
            raise BadInput("the options reader and epoch are for batches (spark.read); a stream's checkpoint has its own")
        self._options = options
        self._schema = schema
        self._first: Offset = {"reader": f"{options.reader_prefix}{uuid.uuid4()}", "epoch": 0, "claims": {}}
        self._broker: Broker | None = None
        self._target: dict[str, int] | None = None
        """With Trigger.AvailableNow: the time by which a message of each queue must have become visible."""
        self._known_settled: int | None = None
        """The last epoch that was settled in the queues when this run began; a checkpoint is set back only between runs."""
        self._claimed: dict[str, int] = {}
        """The last epoch for which each queue was asked. Until Spark has logged it, the same claim is returned again."""
        self._settled = 0
        """The last epoch that this process has settled, so that an idle poll need not ask."""
        self._count: tuple[float, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_broker": None}

    # what Spark calls, in the order of the list above

    def initialOffset(self) -> Offset:
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMaxRows(self._options.max_messages)

    @insistent
    def prepareForTriggerAvailableNow(self) -> None:
        broker = self._open()
        self._target = {name: broker.queue(name).pulse().at for name in self._options.queues(broker)}

    @insistent
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        broker = self._open()
        reached = max(start["epoch"], self._check(start))
        self._settle(start)
        if self._options.pause_file is not None and Path(self._options.pause_file).exists():
            return start
        most = min(limit.max_rows, self._options.max_messages) if isinstance(limit, ReadMaxRows) else self._options.max_messages
        if isinstance(limit, ReadMaxBytes):
            max_bytes: int | None = limit.max_bytes
        else:
            max_bytes = None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes
        epoch = reached + 1
        ready = self._ready(broker, epoch)
        claims: dict[str, int] = {}
        if ready:
            share = max_bytes and max(1, max_bytes // len(ready))
            for name, visible_by in ready:
                if most > sum(claims.values()):
                    left = most - sum(claims.values())
                    self._claimed[name] = epoch  # even if the answer is lost, or the next claim fails
                    claim = self._claim(broker, name, start["reader"], epoch, left, share, visible_by)
                    claims[name] = claim.size
        held = {name: size for name, size in claims.items() if size}
        # If all claimed messages are expired or buried, the claim is empty: there is nothing to read, and the next settle
        # covers it.
        return {"reader": start["reader"], "epoch": epoch, "claims": held} if held else start

    @insistent
    def partitions(self, start: Offset, end: Offset) -> list[Slice]:
        self._check({**start, "reader": end["reader"]})  # for its first batch, Spark asks this process for a new initial offset
        if end["epoch"] <= start["epoch"]:
            return []
        sizes = [(name, self._confirm(name, end, size)) for name, size in sorted(end["claims"].items())]
        among = reading.parts(sum(size for _, size in sizes), self._options.min_partitions, self._options.parallelism)
        return [Slice(end["reader"], end["epoch"], pieces) for pieces in reading.cut(sizes, among)]

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        if not isinstance(partition, Slice):  # Spark passes a partition of its own if we returned none: the batch is empty
            return
        schema = columns.arrow_schema(self._schema)
        counts = yield from reading.claim(self._options, partition.pieces, partition.reader, partition.epoch, schema)
        for piece, found in zip(partition.pieces, counts, strict=True):
            expected = piece.stop - piece.start
            if found < expected:
                self._lost(
                    f"claim {partition.epoch} of reader {partition.reader!r} on queue {piece.queue!r} has {found} of the "
                    f"{expected} messages from place {piece.start} on: the others were deleted behind its back"
                )

    @insistent
    def commit(self, end: Offset) -> None:
        self._settle(end)

    @insistent
    def reportLatestOffset(self) -> Offset | None:
        """What the query's progress shows as the source's latest offset: how many messages wait, and for how long."""
        broker = self._open()
        names = self._options.queues(broker)
        ages = [age for name in names if (age := oldest_wait(broker.queue(name))) is not None]
        if not ages:
            self._count = None
        elif self._count is None or time.monotonic() > self._count[0]:
            visible = sum(broker.queue(name).stats().visible for name in names)
            self._count = (time.monotonic() + COUNT_EVERY, visible)
        return {"visible": self._count[1] if self._count else 0, "oldest_age": max(ages, default=0)}

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    # helpers

    def _open(self) -> Broker:
        if self._broker is None:
            self._broker = self._options.open()
        return self._broker

    def _ready(self, broker: Broker, epoch: int) -> list[tuple[str, int | None]]:
        """The queues that have messages. Queues where the epoch is already claimed come first, then the one that has waited
        longest. With Trigger.AvailableNow, each with its target."""
        found = []
        for name in self._options.queues(broker):
            if self._target is not None and name not in self._target:
                continue  # created after the start
            pulse = broker.queue(name).pulse()
            visible_by = pulse.at if self._target is None else min(pulse.at, self._target[name])
            claimed = self._claimed.get(name) == epoch
            if claimed or (pulse.due_at is not None and pulse.due_at <= visible_by):
                waits_since = 0 if claimed else pulse.due_at or 0
                found.append((not claimed, waits_since, name, None if self._target is None else visible_by))
        return [(name, visible_by) for _, _, name, visible_by in sorted(found, key=lambda each: each[:3])]

    def _claim(
        self, broker: Broker, name: str, reader: str, epoch: int, limit: int, max_bytes: int | None, visible_by: int | None
    ) -> Claim:
        ttl = self._options.claim_timeout
        return broker.queue(name).claim(reader, epoch, limit, ttl=ttl, max_bytes=max_bytes, visible_by=visible_by)

    def _settle(self, done: Offset) -> None:
        """Delete what was read up to this offset; Spark has committed its batch."""
        broker = self._open()
        if done["epoch"] <= self._settled or not self._options.settle:
            return
        for name in sorted(done["claims"]):
            try:
                broker.queue(name).settle(done["reader"], done["epoch"])
            except ClaimLapsed:  # never confirmed, and so never read: see _confirm
                logger.info("nothing of queue %r was read in epoch %d, so nothing is settled", name, done["epoch"])
            except QueueNotFound:
                logger.warning("queue %r is gone, and with it what the stream had read of it", name)
        self._settled = done["epoch"]

    def _confirm(self, name: str, end: Offset, size: int) -> int:
        """Make the claim permanent; returns how many messages it has."""
        reader, epoch = end["reader"], end["epoch"]
        try:
            queue = self._open().queue(name)
            confirmed = queue.confirm(reader, epoch).size
        except QueueNotFound:
            self._lost(f"queue {name!r} is gone, and with it {size} messages that reader {reader!r} had claimed")
            return 0
        except ReaderSetBack:
            self._lost(
                f"epoch {epoch} of reader {reader!r} is to be read again, but its {size} messages of queue {name!r} are "
                "settled and deleted: the checkpoint is older than the queue"
            )
            return 0
        except ClaimLapsed:
            if reader in queue.readers():
                logger.warning(
                    "claim %d of reader %r on queue %r lapsed before Spark had logged it (claimTimeout is %s s); its messages "
                    "are visible again and come with a later batch: this one is empty",
                    epoch, reader, name, self._options.claim_timeout,
                )  # fmt: skip
                if self._target is not None and name in self._target:
                    self._target[name] = queue.pulse().at  # otherwise they would be too late for Trigger.AvailableNow
            else:
                self._lost(
                    f"queue {name!r} knows no reader {reader!r}, which had claimed {size} messages in epoch {epoch}: the "
                    "reader was given up, or the queue made anew"
                )
            return 0
        if confirmed < size:
            self._lost(f"claim {epoch} of reader {reader!r} on queue {name!r} has {confirmed} messages; it had {size}")
        return confirmed

    def _check(self, start: Offset) -> int:
        """Compare an offset from the checkpoint with the queues, once a run. Returns the last epoch that is settled there."""
        if self._known_settled is not None:
            return self._known_settled
        broker = self._open()
        reader, epoch, settled = start["reader"], start["epoch"], 0
        for name in sorted({*self._options.queues(broker), *start["claims"]}):
            try:
                queue = broker.queue(name)
            except QueueNotFound:
                continue  # the messages that were read went with the queue
            known = queue.settled_epoch(reader)
            claims = queue.readers().get(reader)
            settled = max(settled, known or 0)
            for claim in claims or ():
                if claim.size:
                    self._claimed[name] = claim.epoch
            if claims is None and name in start["claims"]:
                self._lost(
                    f"queue {name!r} knows no reader {reader!r}, which has read it up to epoch {epoch}: the reader was "
                    "given up, or the queue made anew; what was not yet settled may come again"
                )
        if settled > epoch:
            self._lost(
                f"the checkpoint says that reader {reader!r} has come to epoch {epoch}, but the queue that it has settled all "
                f"up to {settled}: the checkpoint was set back, and the messages in between are read and deleted"
            )
        self._known_settled = settled
        return settled

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{what}. Start with a new checkpoint, or with failOnDataLoss=false to skip what is missing and go on; "
                "`penstock readers QUEUE` shows who holds what"
            )
        logger.warning("%s; skipped, as failOnDataLoss is false", what)
