"""Exactly-once publishing: many processes stage a writer's numbered batches, and one process publishes them.

    stage ──► staged ──publish──► in the queues; the batch is recorded, and the writer's other segments up to it are removed
                 │
                 └── nobody publishes it for some days ──► removed

A published batch is recognised by its number: publishing it, or an earlier one, again changes nothing. A writer that repeats
only its last batch gives a digest of the messages; any other repetition then raises `WriterSetBack`.

If the store's batches are atomic, a publication is one of them. If they are not (files, memcached), the publication begins when
a manifest is staged beside the segments. From then on, any later publisher completes it from the segments that the manifest
names:

    check all ──► manifest ──► each piece: insert once, record the progress ──► record the batch ──► clean up

The store's journal (files) or marks (memcached) keep a piece from being inserted twice. On memcached, a queue that deduplicates
uses its own rule: a message that was received and deleted between a crash and the repair may appear again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock import policy
from penstock.clock import Clock
from penstock.errors import BadInput, BadMessage, QueueNotFound, SegmentLost, StoreBusy, StoreError, WriterSetBack
from penstock.message import FOREVER, MAX_NUMBER, OCTETS, Draft, Entry, Settings, micros
from penstock.policy import check_count, check_name
from penstock.queue.waiting import Waiting
from penstock.stores.ports import Published, Segment, Staging, Store
from penstock.stores.requests import Alike

if TYPE_CHECKING:
    from penstock.publishing.segments import Piece

logger = logging.getLogger("penstock")

MAX_SEGMENT = 4 * 1024 * 1024
MANIFEST, PROGRESS, DAMAGED = ".manifest", ".progress", ".damaged"
"""Names of our own segments; no other segment can have them."""
KEEP = 3 * 86400
"""Seconds after which unpublished segments are removed."""
REMEMBER = 7 * 86400
"""Seconds for which a writer of one batch is remembered."""
ABANDONED = 60
"""Seconds after which other processes finish a publication that was begun."""
SWEEP_EVERY = 3600
ROWS, ROWS_A_STEP = 10_000, 500
"""How many messages are inserted into a queue at a time."""


class Desk:
    """Where segments are staged."""

    max_segment = MAX_SEGMENT

    def __init__(self, staging: Staging, clock: Clock) -> None:
        self._staging = staging
        self._clock = clock

    def stage(self, writer: str, batch: int, name: str, segment: bytes) -> None:
        check_staging(writer, batch, [name])
        self._staging.stage(writer, batch, name, check_segment(segment), self._clock())

    def unstage(self, writer: str, batch: int, names: Sequence[str]) -> None:
        check_staging(writer, batch, names)
        self._staging.unstage(writer, batch, names)


class Publishing:
    def __init__(self, store: Store, waiting: Waiting, clock: Clock) -> None:
        self._store = store
        self._staging, self._ledger = store.outbox
        self._waiting = waiting
        self._clock = clock
        self._sweep_at = 0

    def publish(
        self,
        writer: str,
        batch: int,
        segments: Mapping[str, int],
        *,
        bad_rows: str | None = None,
        once: bool = False,
        digest: str | None = None,
        allow: Callable[[str], object] = lambda _queue: None,
    ) -> int | None:
        """Publish a batch. Returns how many messages it had; None if it had been published before."""
        if not isinstance(segments, Mapping):
            raise BadInput(f"segments are their names and how many messages each has, not {segments!r:.200}")
        check_staging(writer, batch, list(segments))
        for count in segments.values():
            check_count(count, "count of a segment", 0, MAX_NUMBER)
        if bad_rows is not None:
            allow(check_name(bad_rows))
        if digest is not None:
            check_name(digest, "digest")
        rows = ROWS if self._store.atomic else ROWS_A_STEP
        work = _Work(self._store, self._clock, writer, batch, dict(segments), bad_rows, once, rows, digest, allow)
        with self._staging.fetching(writer, batch, list(segments)) as fetched, self._ledger.publishing(writer) as last:
            if not self._store.atomic:
                last = self._finish(writer, last)
            done = None if last is not None and work.is_repeated(last) else work.publish(fetched)
        self._staging.unstage(writer, batch)
        self._waiting.notify()
        self._sweep(self._clock())
        return done

    def _finish(self, writer: str, last: Published | None) -> Published | None:
        """Finish a publication that was begun earlier. Returns the last published batch after that."""
        for staged in sorted(found for found in self._staging.staged(writer) if found.name == MANIFEST):
            if last is None or staged.batch > last.batch:
                manifest = self._staging.fetch(writer, staged.batch, MANIFEST)
                work = None if manifest is None else self._begun(writer, staged.batch, manifest)
                if work is not None:
                    work.roll_forward()
                    last = work.published
        return last

    def _begun(self, writer: str, batch: int, manifest: bytes) -> _Work | None:
        """The unfinished publication that a manifest describes. None if the manifest is damaged: start over."""
        try:
            return _Work(self._store, self._clock, writer, batch, **check_manifest(json.loads(manifest)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            begun = [found.name for found in self._staging.staged(writer) if found.batch == batch and found.name[:1] == "."]
            self._staging.stage(writer, batch, DAMAGED, manifest, self._clock())
            self._staging.unstage(writer, batch, [name for name in begun if name != DAMAGED])
            logger.error(
                "the manifest of batch %d of writer %r is damaged, and kept until the batch is published again: "
                "some of its messages may be there, and those will come twice",
                batch,
                writer,
            )
            return None

    def _sweep(self, now: int) -> None:
        """Now and then, finish abandoned publications and remove old segments."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + micros(SWEEP_EVERY)
        try:
            self.sweep(now)
        except StoreError as error:  # the caller's request is done; this can wait
            logger.warning("could not clear staged segments, and will try again later: %s", error)

    def sweep(self, now: int) -> None:
        begun: set[str] = set()
        for staged in self._staging.staged():
            if staged.name == MANIFEST and staged.staged_at <= now - micros(ABANDONED):
                begun.add(staged.writer)
        for writer in sorted(begun):
            try:
                with self._ledger.publishing(writer) as last:
                    last = self._finish(writer, last)
            except StoreBusy as error:  # do not hold up the other writers
                logger.warning("cannot finish yet the batch that writer %r has begun: %s", writer, error)
                continue
            if last is not None:
                self._staging.unstage(writer, last.batch)
        left = self._staging.staged()
        begun_batches = {staged[:2] for staged in left if staged.name == MANIFEST}
        for staged in left:
            if staged.staged_at <= now - micros(KEEP) and staged[:2] not in begun_batches:
                self._staging.unstage(staged.writer, staged.batch, [staged.name])
        self._ledger.forget(now)


@dataclass(slots=True)
class _Work:
    """A batch that is being published."""

    store: Store
    clock: Clock
    writer: str
    batch: int
    segments: dict[str, int]
    bad_rows: str | None
    once: bool
    rows: int
    digest: str | None = None
    allow: Callable[[str], object] = lambda _queue: None

    @property
    def published(self) -> Published:
        return Published(self.batch, self.digest)

    def is_repeated(self, last: Published) -> bool:
        """Whether the batch is in the queues already, now that ``last`` is the writer's last one."""
        if self.batch > last.batch:
            return False
        if self.digest is None or (self.batch == last.batch and last.digest in (None, self.digest)):
            return True
        differs = "a later batch is published" if self.batch < last.batch else "it had other messages"
        raise WriterSetBack(
            f"batch {self.batch} of writer {self.writer!r} ({sum(self.segments.values())} messages) was published before, and "
            f"{differs}: the last one is batch {last.batch}"
        )

    def publish(self, fetched: Iterator[Segment | None]) -> int:
        now = self.clock()
        if self.store.atomic:
            for piece in self._pieces(fetched):
                self._put(piece, now)
            self._note(now)
            return sum(self.segments.values())
        for piece in self._pieces(fetched):
            self._checked(piece, now)
        manifest = {
            "segments": self.segments,
            "bad_rows": self.bad_rows,
            "once": self.once,
            "rows": self.rows,
            "digest": self.digest,
        }
        self.store.outbox.staging.stage(self.writer, self.batch, MANIFEST, json.dumps(manifest).encode(), now)
        return self.roll_forward()

    def roll_forward(self) -> int:
        """Complete a publication from its manifest. Some of it may be done already; none of it may be refused any more."""
        now = self.clock()
        noted = self.store.outbox.staging.fetch(self.writer, self.batch, PROGRESS)
        done = 0 if noted is None else self._progress(noted)
        fetched = (self.store.outbox.staging.fetch(self.writer, self.batch, name) for name in self.segments)
        for number, piece in enumerate(self._pieces(fetched)):
            if number < done:
                continue
            parts = enumerate(self._forced(piece, now))
            spent = [self._insert_once(part, now, f"{number}.{place}") for place, part in parts]
            # A publisher that was too slow fails here. Its marks or journal keep the next one from inserting twice.
            self.store.outbox.staging.stage(self.writer, self.batch, PROGRESS, b"%d" % (number + 1), now)
            for forget in spent:
                forget()
        self._note(now)
        return sum(self.segments.values())

    def _progress(self, noted: bytes) -> int:
        if noted.isdigit():
            return int(noted)
        logger.error(
            "how far batch %d of writer %r has come is damaged: it is begun anew, and some of its messages may come twice",
            self.batch,
            self.writer,
        )
        return 0

    def _note(self, now: int) -> None:
        self.store.outbox.ledger.note(self.writer, self.published, now + micros(REMEMBER) if self.once else FOREVER)

    def _pieces(self, fetched: Iterator[Segment | None]) -> Iterator[Piece]:
        unpack = import_module("penstock.publishing.segments").unpack if self.segments else None
        for (name, count), segment in zip(self.segments.items(), fetched, strict=True):
            if segment is None:
                raise SegmentLost(f"segment {name!r} of batch {self.batch} of writer {self.writer!r} is not there")
            found = 0
            for piece in unpack(segment, self.rows):  # type: ignore[misc]
                found += len(piece.drafts)
                yield piece
            if found != count:
                raise SegmentLost(
                    f"segment {name!r} of batch {self.batch} of writer {self.writer!r} has {found} messages, not {count}"
                )

    def _put(self, piece: Piece, now: int) -> None:
        self.allow(piece.queue)
        try:
            self._insert(piece, now)
        except (BadInput, QueueNotFound):  # nothing was changed
            for part in self._checked(piece, now):
                self._insert(part, now)

    def _checked(self, piece: Piece, now: int) -> list[Piece]:
        """The piece if all its messages are valid. If there is a queue for bad rows, the invalid ones are diverted there."""
        self.allow(piece.queue)
        try:
            self._admit(piece, now)
            return [piece]
        except (BadInput, QueueNotFound):
            if self.bad_rows is None:
                raise
        good: list[Draft | bytes] = []
        bad: list[Draft | bytes] = []
        for draft in piece.drafts:
            try:
                self._admit(piece._replace(drafts=[draft]), now)
                good.append(draft)
            except (BadInput, QueueNotFound) as error:
                bad.append(divert(draft, piece.queue, str(error)))
        parts = [piece._replace(drafts=good)] if good else []
        parts.append(piece._replace(queue=self.bad_rows, drafts=bad, problem=None))
        self._admit(parts[-1], now)
        return parts

    def _forced(self, piece: Piece, now: int) -> list[Piece]:
        try:
            return self._checked(piece, now)
        except QueueNotFound as error:  # deleted after the manifest was written, together with its messages
            logger.warning("%d messages of writer %r are gone: %s", len(piece.drafts), self.writer, error)
            return []

    def _admit(self, piece: Piece, now: int) -> tuple[Settings, list[Entry]]:
        settings = self._settings(piece)
        return settings, policy.admit_all(piece.drafts, settings, now, piece.content_type)

    def _settings(self, piece: Piece) -> Settings:
        if piece.problem is not None:
            raise BadMessage(piece.problem)
        settings = self.store.load(check_name(piece.queue))
        if settings is None:
            raise QueueNotFound(piece.queue)
        return settings

    def _insert(self, piece: Piece, now: int) -> None:
        done = False
        while not done:
            settings = self._settings(piece)
            like = policy.admit_alike(piece.drafts, settings, now, piece.content_type)
            if like is not None:
                entries: Sequence[Entry] = Alike(like, piece.drafts)  # type: ignore[arg-type]
            else:
                entries = policy.admit_all(piece.drafts, settings, now, piece.content_type)
            done = self.store.queue(piece.queue).insert(entries, now, settings) is not None

    def _insert_once(self, piece: Piece, now: int, place: str) -> Callable[[], object]:
        while True:
            settings, entries = self._admit(piece, now)
            step = (self.writer, self.batch, place)
            forget = self.store.outbox.ledger.insert_once(step, piece.queue, entries, now, settings)
            if forget is not None:
                return forget


def divert(draft: Draft | bytes, queue: str, reason: str) -> Draft:
    """A draft for the bad-rows queue: as much of the body as fits, the queue it was meant for, and the reason."""
    body = draft if isinstance(draft, bytes) else draft.body
    return Draft(body[: policy.MAX_BODY], OCTETS, {"reason": reason[:1000], "queue": queue[:200]})


def check_manifest(manifest: Any) -> dict[str, Any]:
    """Check a manifest: what an unfinished publication still has to publish."""
    bad_rows, rows, digest = manifest["bad_rows"], manifest["rows"], manifest.get("digest")
    fits = all(type(name) is str and type(count) is int for name, count in manifest["segments"].items())
    if not fits or type(manifest["once"]) is not bool or type(rows) is not int or rows < 1:
        raise ValueError("this is not a manifest")
    for name in (bad_rows, digest):
        if name is not None:
            check_name(name)
    return {"segments": manifest["segments"], "bad_rows": bad_rows, "once": manifest["once"], "rows": rows, "digest": digest}


def check_staging(writer: object, batch: object, names: Sequence[object]) -> None:
    check_name(writer, "writer name")
    check_count(batch, "batch", 0, 2**62)
    for name in names:
        check_name(name, "segment name")


def check_segment(segment: object) -> bytes:
    if not isinstance(segment, bytes):
        raise BadMessage(f"a segment is bytes, not {type(segment).__name__}: {segment!r:.200}")
    if len(segment) > MAX_SEGMENT:
        raise BadMessage(f"the segment has {len(segment)} bytes, the limit is {MAX_SEGMENT}")
    return segment
