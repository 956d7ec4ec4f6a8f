"""A store over files that are renamed from state to state: all that the file formats have in common.

    shelf           where a format keeps its messages        beside          what it has no room for
    file_catalogue  queues, transactions, errors             file_views      looking, counting, the history
    file_messages   sending, claiming, settling, moving      file_publishing what writers stage and publish
    files           tending, named claims

Penstock's own processes take a lock a queue while names change, so that a receipt can be compared and acted upon; foreign
programs know no lock, and meet us in the renames alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.message import FOREVER, Claim, Held, Message, Receipt, Settlement, State
from penstock.stores.disk import remove_folder
from penstock.stores.files.folder import Shelf, is_orphaned
from penstock.stores.files.messages import FileMessages
from penstock.stores.files.outbox import WRITERS, FileLedger
from penstock.stores.files.records import ASIDE, Extra
from penstock.stores.files.sidecar import FOLDER, digest
from penstock.stores.files.views import settled_names
from penstock.stores.locks import TIMEOUT
from penstock.stores.ports import Outbox
from penstock.stores.staging import StagedFiles


class FileStore(FileMessages):
    def __init__(self, root: str | Path, *, timeout: float = TIMEOUT) -> None:
        super().__init__(root, timeout=timeout)
        staging = StagedFiles(self.root / FOLDER / WRITERS, durable=True, admit=self._reserve.admit)
        self._ledger = FileLedger(self, staging)
        self.outbox = Outbox(staging, self._ledger)

    # tending

    def purge(self, queue: str, limit: int) -> int:
        with self._draining(queue) as shelf:
            shelf.refresh()
            held = {
                id
                for _, record in self._all_claims(shelf)
                for id, delivery in record["receipts"]
                if self._holds(shelf, id, delivery)
            }
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
                self._finish_claims(shelf, now)
                self._remove_orphans(shelf)
                if beside.damaged():
                    self._free_unclaimed(shelf, now)
            self._reserve.make()
            return False

    def _remove_orphans(self, shelf: Shelf) -> None:
        """What the dead left unfinished: drafts, and what lies beside a message that is gone or never came."""
        if self._ledger.is_inserting(shelf.queue):
            return  # drafts that are yet to be published
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
        """Give back what is hidden for ever by a claim that was damaged, or whose own record was."""
        claimed = {(id, delivery) for _, record in self._all_claims(shelf) for id, delivery in record["receipts"]}
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
            self._finish_claims(shelf, None)

    # named claims

    def _reader(self, reader: str) -> str:
        return digest(reader.encode())

    def _all_claims(self, shelf: Shelf) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for folder in os.listdir(shelf.beside.folder / "reader"):
            with suppress(FileNotFoundError):  # given up in this moment
                for name in os.listdir(shelf.beside.folder / "reader" / folder):
                    record = shelf.beside.read_json("reader", folder, name) if name.isdigit() else None
                    if record:
                        found.append((folder, record))
        return found

    def _finish_claims(self, shelf: Shelf, now: int | None) -> None:
        """What a reader left half done when it died is done to the end: a settlement, a confirmation. Under the lock.

        A claim that was not confirmed in time is forgotten: its messages come back by themselves."""
        for folder, record in self._all_claims(shelf):
            known = shelf.beside.read_json("reader", folder, "settled")
            receipts = [Receipt(shelf.queue, id, delivery) for id, delivery in record["receipts"]]
            if known and record["epoch"] <= known["epoch"]:
                state, *rest = known["settlement"]
                self._settle_claim(shelf, record, Settlement(State(state), *rest))
            elif not record["confirmed"] and any(self._is_confirmed(shelf, receipt) for receipt in receipts):
                self._confirm(shelf, folder, record)
                continue
            elif now is None or record["confirmed"] or record["lapses_at"] > now:
                continue
            shelf.beside.remove("reader", folder, str(record["epoch"]))

    def _is_confirmed(self, shelf: Shelf, receipt: Receipt) -> bool:
        return shelf.index.get(receipt.id, 0) >= FOREVER and self._holds(shelf, receipt.id, receipt.delivery)

    def _holds(self, shelf: Shelf, id: str, delivery: int | None) -> bool:
        hold = shelf.hold(id)
        return hold is not None and hold.delivery == delivery and hold.released != 1

    def hold(self, queue: str, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._draining(queue) as shelf:
            folder = self._reader(reader)
            (shelf.beside.folder / "reader" / folder).mkdir(exist_ok=True)
            if shelf.beside.read_json("reader", folder, "name") is None:
                shelf.beside.write_json({"reader": reader}, "reader", folder, "name")
            held = [[receipt.id, receipt.delivery] for receipt in receipts]
            record = {"epoch": epoch, "confirmed": False, "lapses_at": lapses_at, "receipts": held}
            shelf.beside.write_json(record, "reader", folder, str(epoch))

    def held(self, queue: str, reader: str) -> tuple[int | None, list[Claim]]:
        with self._queue(queue, durable=False) as shelf:
            folder = self._reader(reader)
            known = shelf.beside.read_json("reader", folder, "settled") or {"epoch": None}
            claims = [
                Claim(reader, record["epoch"], len(record["receipts"]), record["confirmed"], record["lapses_at"])
                for name, record in self._all_claims(shelf)
                if name == folder and (known["epoch"] is None or record["epoch"] > known["epoch"])
            ]
            return known["epoch"], sorted(claims, key=lambda claim: claim.epoch)

    def readers(self, queue: str) -> list[str]:
        with self._queue(queue, durable=False) as shelf:
            folders = os.listdir(shelf.beside.folder / "reader")
            records = [shelf.beside.read_json("reader", folder, "name") for folder in folders]
            return sorted(record["reader"] for record in records if record)

    def confirm(self, queue: str, reader: str, epoch: int) -> None:
        with self._draining(queue) as shelf:
            folder = self._reader(reader)
            record = shelf.beside.read_json("reader", folder, str(epoch))
            if record is not None:
                with shelf.changing():
                    self._confirm(shelf, folder, record)

    def _confirm(self, shelf: Shelf, folder: str, record: dict[str, Any]) -> None:
        for id, delivery in record["receipts"]:
            self._extend(shelf, Receipt(shelf.queue, id, delivery), FOREVER, release=False)
        record |= {"confirmed": True, "lapses_at": FOREVER}
        shelf.beside.write_json(record, "reader", folder, str(record["epoch"]))

    def read(self, queue: str, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._queue(queue, durable=False) as shelf:
            record = shelf.beside.read_json("reader", self._reader(reader), str(epoch))
            if record is None:
                raise KeyError(epoch)
            found = []
            for id, delivery in record["receipts"][start:stop]:
                hidden = shelf.find(id) if self._holds(shelf, id, delivery) else None
                message = None if hidden is None else self._message(shelf, id, hidden, shelf.hold(id))
                if message is not None:
                    found.append(message)
            return found

    def settle(self, queue: str, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._draining(queue) as shelf:
            folder = self._reader(reader)
            (shelf.beside.folder / "reader" / folder).mkdir(exist_ok=True)
            shelf.beside.write_json({"reader": reader}, "reader", folder, "name")
            known = shelf.beside.read_json("reader", folder, "settled") or {"epoch": epoch}
            # The epoch first: from here on the settlement counts, and whoever comes next finishes it if we die.
            how = [settlement.state, settlement.settled_at, settlement.reason, settlement.keep_until]
            shelf.beside.write_json({"epoch": max(epoch, known["epoch"]), "settlement": how}, "reader", folder, "settled")
            gone = 0
            with shelf.changing():
                for name, record in self._all_claims(shelf):
                    if name == folder and record["epoch"] <= epoch:
                        gone += self._settle_claim(shelf, record, settlement)
                        shelf.beside.remove("reader", folder, str(record["epoch"]))
            return gone

    def _settle_claim(self, shelf: Shelf, record: dict[str, Any], settlement: Settlement) -> int:
        gone = 0
        for id, delivery in record["receipts"]:
            hold = shelf.hold(id)
            if hold is None or hold.released != ASIDE:  # what is damaged stays
                gone += self._delete(shelf, Receipt(shelf.queue, id, delivery), settlement)
        return gone

    def give_back(self, queue: str, reader: str, epoch: int | None, now: int) -> int:
        with self._draining(queue) as shelf:
            folder = self._reader(reader)
            given = 0
            with shelf.changing():
                for name, record in self._all_claims(shelf):
                    if name == folder and epoch in (None, record["epoch"]):
                        for id, delivery in record["receipts"]:
                            given += self._extend(shelf, Receipt(queue, id, delivery), now, release=True)
                        shelf.beside.remove("reader", folder, str(record["epoch"]))
            if epoch is None:
                remove_folder(shelf.beside.folder / "reader" / folder)
            return given
