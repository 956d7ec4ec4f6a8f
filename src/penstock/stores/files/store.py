"""A store of files that are renamed from state to state: what all file formats have in common.

    folder     where a format keeps its messages        sidecar    what it has no room for
    catalogue  queues, transactions, errors             views      looking, counting, the history
    messages   sending, claiming, settling, moving      outbox     what writers stage and publish
    readers    named claims                             store      tending

Penstock's own processes lock a queue while they change names, so that they can check a receipt and act on it. Other programs do
not know that lock; only the renames coordinate us with them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.message import FOREVER, Receipt
from penstock.stores.files.folder import Shelf, is_orphaned
from penstock.stores.files.messages import FileMessages
from penstock.stores.files.outbox import WRITERS, FileLedger
from penstock.stores.files.readers import FileReaders, all_receipts, held_ids
from penstock.stores.files.records import ASIDE, Extra
from penstock.stores.files.sidecar import FOLDER
from penstock.stores.files.views import settled_names
from penstock.stores.locks import TIMEOUT
from penstock.stores.ports import Outbox, Readers
from penstock.stores.staging import StagedFiles


class FileStore(FileMessages):
    def __init__(self, root: str | Path, *, timeout: float = TIMEOUT) -> None:
        super().__init__(root, timeout=timeout)
        staging = StagedFiles(self.root / FOLDER / WRITERS, durable=True, admit=self._reserve.admit)
        self._ledger = FileLedger(self, staging)
        self.outbox = Outbox(staging, self._ledger)

    def readers(self, queue: str) -> Readers:
        return FileReaders(self, queue)

    # cleaning up

    def purge(self, queue: str, limit: int) -> int:
        with self._draining(queue) as shelf:
            shelf.refresh()
            held = held_ids(shelf)
            ids = [id for id in shelf.index if id not in held][:limit]
            with shelf.changing():
                return sum(self._delete(shelf, Receipt(queue, id, None), None) for id in ids)

    def sweep(self, queue: str, now: int) -> bool:
        with self._draining(queue) as shelf:
            beside = shelf.beside
            with shelf.changing():
                shelf.refresh()
                for name in settled_names(shelf):
                    keep_until = self._kept_until(shelf, name)
                    if keep_until is not None and (keep_until <= now or name.split(".", 1)[1] in shelf.index):
                        beside.remove("settled", name)
                for name in beside.names("mark"):
                    record = beside.read_json("mark", name)
                    if record and (
                        record["until"] <= now
                        or (not self._counts(shelf, name, record) and is_orphaned(f"{beside.folder}/mark/{name}"))
                    ):
                        beside.remove("mark", name)
                FileReaders(self, queue).finish(shelf, now)
                self._remove_orphans(shelf)
                if beside.damaged():
                    self._free_unclaimed(shelf, now)
            self._reserve.make()
            return False

    def _remove_orphans(self, shelf: Shelf) -> None:
        """Remove what dead processes left: drafts, and sidecar files of messages that are gone or were never sent."""
        if self._ledger.is_inserting(shelf.queue):
            return  # its drafts are yet to be published
        writing: set[str] = set()
        for path in shelf.drafts():
            id = os.path.basename(path).removesuffix(".new").rpartition(":")[2]
            if is_orphaned(path):
                with suppress(FileNotFoundError):
                    self._drop_draft(shelf, id, Extra.unpack(shelf.beside.read_json("head", id)).mark)
            else:
                writing.add(id)
        for part in ("head", "held", "mark", "settled"):
            folder = shelf.beside.folder / part
            for name in os.listdir(folder):
                unfinished = name.endswith("~")
                gone = part in ("head", "held") and name not in shelf.index and name not in writing
                if (unfinished or gone) and is_orphaned(f"{folder}/{name}"):
                    with suppress(FileNotFoundError):
                        os.unlink(f"{folder}/{name}")

    def _free_unclaimed(self, shelf: Shelf, now: int) -> None:
        """Give back messages that are hidden for ever by a damaged claim, or whose own record was damaged."""
        claimed = set(all_receipts(shelf))
        for id in [id for id, hidden in shelf.index.items() if hidden >= FOREVER]:
            hold = shelf.hold(id)
            if hold is None:
                shelf.rename(shelf.path(id, FOREVER), id, 0)
                shelf.note(id, 0)
                self._dirty.update(shelf.folders())
            elif hold.released != ASIDE and (id, hold.delivery) not in claimed:
                self._extend(shelf, Receipt(shelf.queue, id, hold.delivery), now, release=True)

    def _recover(self, shelf: Shelf) -> None:
        if os.listdir(shelf.beside.folder / "reader"):
            shelf.refresh()
            FileReaders(self, shelf.queue).finish(shelf, None)
