"""The named claims of a file queue: a folder per reader, with a record for each claim.

reader/SHA256/name       {"reader"}
reader/SHA256/EPOCH      {"epoch", "confirmed", "lapses_at", "receipts"}
reader/SHA256/settled    {"epoch", "settlement"}: the last settled epoch
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from penstock.message import FOREVER, Claim, Held, Message, Receipt, Settlement, State
from penstock.stores.disk import remove_folder
from penstock.stores.files.folder import Shelf
from penstock.stores.files.messages import FileMessages
from penstock.stores.files.records import ASIDE
from penstock.stores.files.sidecar import digest
from penstock.stores.ports import Readers


class FileReaders(Readers):
    def __init__(self, store: FileMessages, queue: str) -> None:
        self._store = store
        self._queue = queue

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._store._draining(self._queue) as shelf:
            folder = _enter(shelf, reader)
            held = [[receipt.id, receipt.delivery] for receipt in receipts]
            record = {"epoch": epoch, "confirmed": False, "lapses_at": lapses_at, "receipts": held}
            shelf.beside.write_json(record, "reader", folder, str(epoch))

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._store._queue(self._queue, durable=False) as shelf:
            folder = _folder(reader)
            known = shelf.beside.read_json("reader", folder, "settled") or {"epoch": None}
            return known["epoch"], [
                Claim(reader, record["epoch"], len(record["receipts"]), record["confirmed"], record["lapses_at"])
                for record in _claims(shelf, folder)
                if known["epoch"] is None or record["epoch"] > known["epoch"]
            ]

    def names(self) -> list[str]:
        with self._store._queue(self._queue, durable=False) as shelf:
            records = [shelf.beside.read_json("reader", folder, "name") for folder in _folders(shelf)]
            return sorted(record["reader"] for record in records if record)

    def confirm(self, reader: str, epoch: int) -> None:
        with self._store._draining(self._queue) as shelf:
            record = shelf.beside.read_json("reader", _folder(reader), str(epoch))
            if record is not None:
                with shelf.changing():
                    self._confirm(shelf, _folder(reader), record)

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._store._queue(self._queue, durable=False) as shelf:
            record = shelf.beside.read_json("reader", _folder(reader), str(epoch))
            if record is None:
                raise KeyError(epoch)
            found = []
            for id, delivery in record["receipts"][start:stop]:
                hidden = shelf.find(id) if _holds(shelf, id, delivery) else None
                message = None if hidden is None else self._store._message(shelf, id, hidden, shelf.hold(id))
                if message is not None:
                    found.append(message)
            return found

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._store._draining(self._queue) as shelf:
            folder = _enter(shelf, reader)
            known = shelf.beside.read_json("reader", folder, "settled") or {"epoch": epoch}
            # Write the epoch first: from here on the settlement counts, and if we die the next process finishes it.
            how = [settlement.state, settlement.settled_at, settlement.reason, settlement.keep_until]
            shelf.beside.write_json({"epoch": max(epoch, known["epoch"]), "settlement": how}, "reader", folder, "settled")
            gone = 0
            with shelf.changing():
                for record in _claims(shelf, folder):
                    if record["epoch"] <= epoch:
                        gone += self._settle(shelf, record, settlement)
                        shelf.beside.remove("reader", folder, str(record["epoch"]))
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._store._draining(self._queue) as shelf:
            folder = _folder(reader)
            given = 0
            with shelf.changing():
                for record in _claims(shelf, folder):
                    if epoch in (None, record["epoch"]):
                        for id, delivery in record["receipts"]:
                            given += self._store._extend(shelf, Receipt(self._queue, id, delivery), now, release=True)
                        shelf.beside.remove("reader", folder, str(record["epoch"]))
            if epoch is None:
                remove_folder(shelf.beside.folder / "reader" / folder)
            return given

    # for the store, which tends the queue under its lock

    def finish(self, shelf: Shelf, now: int | None) -> None:
        """Finish a settlement or confirmation that a reader left half done when it died.

        With ``now``, forget claims that were not confirmed in time: their messages become visible by themselves."""
        for folder in _folders(shelf):
            for record in _claims(shelf, folder):
                known = shelf.beside.read_json("reader", folder, "settled")
                if known and record["epoch"] <= known["epoch"]:
                    state, *rest = known["settlement"]
                    self._settle(shelf, record, Settlement(State(state), *rest))
                elif not record["confirmed"] and any(_is_confirmed(shelf, *receipt) for receipt in record["receipts"]):
                    self._confirm(shelf, folder, record)
                    continue
                elif now is None or record["confirmed"] or record["lapses_at"] > now:
                    continue
                shelf.beside.remove("reader", folder, str(record["epoch"]))

    def _confirm(self, shelf: Shelf, folder: str, record: dict[str, Any]) -> None:
        for id, delivery in record["receipts"]:
            self._store._extend(shelf, Receipt(shelf.queue, id, delivery), FOREVER, release=False)
        record |= {"confirmed": True, "lapses_at": FOREVER}
        shelf.beside.write_json(record, "reader", folder, str(record["epoch"]))

    def _settle(self, shelf: Shelf, record: dict[str, Any], settlement: Settlement) -> int:
        gone = 0
        for id, delivery in record["receipts"]:
            hold = shelf.hold(id)
            if hold is None or hold.released != ASIDE:  # damaged messages stay
                gone += self._store._delete(shelf, Receipt(shelf.queue, id, delivery), settlement)
        return gone


def all_receipts(shelf: Shelf) -> list[tuple[str, int]]:
    """Each message of a named claim, with the delivery under which it was claimed."""
    records = [record for folder in _folders(shelf) for record in _claims(shelf, folder)]
    return [(id, delivery) for record in records for id, delivery in record["receipts"]]


def held_ids(shelf: Shelf) -> set[str]:
    """The messages that named claims still hold."""
    return {id for id, delivery in all_receipts(shelf) if _holds(shelf, id, delivery)}


def _folder(reader: str) -> str:
    return digest(reader.encode())


def _enter(shelf: Shelf, reader: str) -> str:
    """The reader's folder, created if it does not exist or lacks its name file."""
    folder = _folder(reader)
    (shelf.beside.folder / "reader" / folder).mkdir(exist_ok=True)
    if shelf.beside.read_json("reader", folder, "name") is None:
        shelf.beside.write_json({"reader": reader}, "reader", folder, "name")
    return folder


def _folders(shelf: Shelf) -> list[str]:
    return os.listdir(shelf.beside.folder / "reader")


def _claims(shelf: Shelf, folder: str) -> list[dict[str, Any]]:
    """The records of a reader's claims, by epoch."""
    names: list[str] = []
    with suppress(FileNotFoundError):  # there is no such reader, or it was given up at this moment
        names = os.listdir(shelf.beside.folder / "reader" / folder)
    records = [shelf.beside.read_json("reader", folder, name) for name in names if name.isdigit()]
    return sorted(filter(None, records), key=itemgetter("epoch"))


def _holds(shelf: Shelf, id: str, delivery: int | None) -> bool:
    hold = shelf.hold(id)
    return hold is not None and hold.delivery == delivery and hold.released != 1


def _is_confirmed(shelf: Shelf, id: str, delivery: int | None) -> bool:
    return shelf.index.get(id, 0) >= FOREVER and _holds(shelf, id, delivery)
