"""Staging and publishing in a file store.

ROOT/.penstock/.writers/WRITER/
  BATCH.NAME           a segment (see `penstock.stores.staging`)
  BATCH..journal       the messages that are about to be renamed from drafts into their queue: those that are still drafts
                       were not published yet; the others were, even if they have been received and deleted since
  .published           the last batch, its digest, and until when to remember it
  .lock                held (flock) by the publisher

Damaged records are set aside in ROOT/.penstock/.damaged/.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

from penstock.file_times import is_orphaned
from penstock.guarded import guarded
from penstock.message import Entry, Settings
from penstock.stores.disk import read_whole, remove_folder, write_whole
from penstock.stores.files.marks import MarkRow
from penstock.stores.files.queue import Queues
from penstock.stores.files.records import DAMAGE, check_journal, check_writer, set_aside
from penstock.stores.files.sidecar import FOLDER
from penstock.stores.locks import FileLock, Locks
from penstock.stores.ports import Ledger, Published, Step
from penstock.stores.staging import StagedFiles

WRITERS, DAMAGED = ".writers", ".damaged"
"""No queue's name begins with a dot."""
JOURNAL, PUBLISHED, LOCK = ".journal", ".published", ".lock"


class FileLedger(Ledger):
    def __init__(self, queues: Queues, staging: StagedFiles) -> None:
        self._queues = queues
        self._transactions = queues.transactions
        self._staging = staging

    @guarded
    def publishing(self, writer: str) -> Generator[Published | None]:
        """Not a batch: each step inside is durable by itself."""
        transactions = self._transactions
        with transactions.batch(durable=False):
            folder = self._staging.folder / writer
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{folder}/{LOCK}", f"writer {writer!r} in {transactions}", Locks(transactions.patience))
            lock.open()
        try:
            lock.take()
            noted = self._noted(writer)
            yield None if noted is None else Published(noted["batch"], noted.get("digest"))
        finally:
            lock.give()

    def _noted(self, writer: str) -> dict[str, Any] | None:
        with self._transactions.batch(durable=False):
            noted: dict[str, Any] | None = self._read(f"{self._staging.folder}/{writer}/{PUBLISHED}", check_writer)
            return noted

    def _read(self, path: str, check: Callable[[Any], None]) -> Any:
        """The record, or None if it is missing or damaged."""
        content = read_whole(path)
        if content is None:
            return None
        try:
            record = json.loads(content)
            check(record)
        except DAMAGE:
            set_aside(path, content, f"{self._queues.root}/{FOLDER}/{DAMAGED}", read_whole, self._queues.on_damage)
            return None
        return record

    def note(self, writer: str, published: Published, keep_until: int) -> None:
        with self._transactions.batch(durable=False):
            record = {**published._asdict(), "keep_until": keep_until}
            write_whole(self._staging.folder / writer / PUBLISHED, json.dumps(record).encode())

    def forget(self, now: int) -> None:
        with self._transactions.batch(durable=False), suppress(FileNotFoundError):
            for writer in os.listdir(self._staging.folder):
                noted, folder = self._noted(writer), self._staging.folder / writer
                never = noted is None and not self._staging.staged(writer) and is_orphaned(f"{folder}/{LOCK}")
                if never or (noted is not None and noted["keep_until"] <= now):
                    remove_folder(folder)

    def insert_once(
        self, step: Step, queue: str, entries: Sequence[Entry], now: int, settings: Settings
    ) -> Callable[[], object] | None:
        """Uses a journal; that of the next step replaces it, and it is removed with the batch."""
        writer, batch, place = step
        stored = self._queues.get(queue)
        with stored.opening.visit():
            # A draft that reappears after a power cut would be published again.
            self._transactions.dirty.add(stored.sending.drafts_folder())
            begun = self._journal(writer, batch)
            if begun is not None and begun["place"] == place:
                if begun["born"] == stored.opening.born():  # else that queue was deleted with all its messages
                    rows = [MarkRow(*row)._replace(mark=row[3] and bytes.fromhex(row[3])) for row in begun["rows"]]
                    stored.sending.finish(rows, now)
                return lambda: None

            def journal(rows: list[MarkRow]) -> None:
                packed = [row._replace(mark=row.mark and row.mark.hex()) for row in rows]  # type: ignore[arg-type]
                record = {"place": place, "queue": queue, "born": stored.opening.born(), "rows": packed}
                stored.sidecar.sync_memo()
                self._staging.stage(writer, batch, JOURNAL, json.dumps(record).encode(), now)

            return None if stored.sending.insert(entries, now, settings, journal) is None else lambda: None

    def _journal(self, writer: str, batch: int) -> dict[str, Any] | None:
        with self._transactions.batch(durable=False):
            record: dict[str, Any] | None = self._read(f"{self._staging.folder}/{writer}/{batch}.{JOURNAL}", check_journal)
            return record

    def is_inserting(self, queue: str) -> bool:
        """Whether an insert into this queue was begun and is not finished."""
        journals = (self._journal(found.writer, found.batch) for found in self._staging.staged() if found.name == JOURNAL)
        return any(journal is not None and journal["queue"] == queue for journal in journals)
