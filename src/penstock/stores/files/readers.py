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
from penstock.stores.files.holding import HeldFiles
from penstock.stores.files.opening import Opening
from penstock.stores.files.records import ASIDE
from penstock.stores.files.sidecar import digest
from penstock.stores.ports import Readers


class FileReaders(Readers):
    def __init__(self, opening: Opening, holding: HeldFiles) -> None:
        self._opening = opening
        self._folder = opening.folder
        self._sidecar = opening.folder.sidecar
        self._holding = holding
        self._at = self._sidecar.folder / "reader"

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._opening.visit(drains=True):
            folder = self._enter(reader)
            held = [[receipt.id, receipt.delivery] for receipt in receipts]
            record = {"epoch": epoch, "confirmed": False, "lapses_at": lapses_at, "receipts": held}
            self._sidecar.write_json(record, "reader", folder, str(epoch))

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._opening.visit(durable=False):
            folder = _folder(reader)
            known = self._sidecar.read_json("reader", folder, "settled") or {"epoch": None}
            return known["epoch"], [
                Claim(reader, record["epoch"], len(record["receipts"]), record["confirmed"], record["lapses_at"])
                for record in self._claims(folder)
                if known["epoch"] is None or record["epoch"] > known["epoch"]
            ]

    def names(self) -> list[str]:
        with self._opening.visit(durable=False):
            records = [self._sidecar.read_json("reader", folder, "name") for folder in os.listdir(self._at)]
            return sorted(record["reader"] for record in records if record)

    def confirm(self, reader: str, epoch: int) -> None:
        with self._opening.visit(drains=True):
            record = self._sidecar.read_json("reader", _folder(reader), str(epoch))
            if record is not None:
                with self._folder.changing():
                    self._confirm(_folder(reader), record)

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._opening.visit(durable=False):
            record = self._sidecar.read_json("reader", _folder(reader), str(epoch))
            if record is None:
                raise KeyError(epoch)
            found = []
            for id, delivery in record["receipts"][start:stop]:
                hidden = self._folder.find(id) if self._holds(id, delivery) else None
                message = None if hidden is None else self._folder.read(id, hidden)
                if message is not None:
                    found.append(message)
            return found

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._opening.visit(drains=True):
            folder = self._enter(reader)
            known = self._sidecar.read_json("reader", folder, "settled") or {"epoch": epoch}
            # Write the epoch first: from here on the settlement counts, and if we die the next process finishes it.
            how = [settlement.state, settlement.settled_at, settlement.reason, settlement.keep_until]
            self._sidecar.write_json({"epoch": max(epoch, known["epoch"]), "settlement": how}, "reader", folder, "settled")
            gone = 0
            with self._folder.changing():
                for record in self._claims(folder):
                    if record["epoch"] <= epoch:
                        gone += self._settle(record, settlement)
                        self._sidecar.remove("reader", folder, str(record["epoch"]))
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._opening.visit(drains=True):
            folder = _folder(reader)
            given = 0
            with self._folder.changing():
                for record in self._claims(folder):
                    if epoch in (None, record["epoch"]):
                        for id, delivery in record["receipts"]:
                            given += self._holding.extend(Receipt(self._opening.name, id, delivery), now, release=True)
                        self._sidecar.remove("reader", folder, str(record["epoch"]))
            if epoch is None:
                remove_folder(self._at / folder)
            return given

    # for the queue, under its lock

    def recover(self) -> None:
        """When the queue is first used: finish what readers that died left half done."""
        if os.listdir(self._at):
            self._folder.refresh()
            self.finish(None)

    def finish(self, now: int | None) -> None:
        """Finish a settlement or confirmation that a reader left half done when it died.

        With ``now``, forget claims that were not confirmed in time: their messages become visible by themselves."""
        for folder in os.listdir(self._at):
            for record in self._claims(folder):
                known = self._sidecar.read_json("reader", folder, "settled")
                if known and record["epoch"] <= known["epoch"]:
                    state, *rest = known["settlement"]
                    self._settle(record, Settlement(State(state), *rest))
                elif not record["confirmed"] and any(self._is_confirmed(*receipt) for receipt in record["receipts"]):
                    self._confirm(folder, record)
                    continue
                elif now is None or record["confirmed"] or record["lapses_at"] > now:
                    continue
                self._sidecar.remove("reader", folder, str(record["epoch"]))

    def all_receipts(self) -> list[tuple[str, int]]:
        """Each message of a named claim, with the delivery under which it was claimed."""
        records = [record for folder in os.listdir(self._at) for record in self._claims(folder)]
        return [(id, delivery) for record in records for id, delivery in record["receipts"]]

    def held_ids(self) -> set[str]:
        """The messages that named claims still hold."""
        return {id for id, delivery in self.all_receipts() if self._holds(id, delivery)}

    def _confirm(self, folder: str, record: dict[str, Any]) -> None:
        for id, delivery in record["receipts"]:
            self._holding.extend(Receipt(self._opening.name, id, delivery), FOREVER)
        record |= {"confirmed": True, "lapses_at": FOREVER}
        self._sidecar.write_json(record, "reader", folder, str(record["epoch"]))

    def _settle(self, record: dict[str, Any], settlement: Settlement) -> int:
        gone = 0
        for id, delivery in record["receipts"]:
            received = self._folder.received(id)
            if received is None or received.released != ASIDE:  # damaged messages stay
                gone += self._holding.delete(Receipt(self._opening.name, id, delivery), settlement)
        return gone

    def _enter(self, reader: str) -> str:
        """The reader's folder, created if it does not exist or lacks its name file."""
        folder = _folder(reader)
        (self._at / folder).mkdir(exist_ok=True)
        if self._sidecar.read_json("reader", folder, "name") is None:
            self._sidecar.write_json({"reader": reader}, "reader", folder, "name")
        return folder

    def _claims(self, folder: str) -> list[dict[str, Any]]:
        """The records of a reader's claims, by epoch."""
        names: list[str] = []
        with suppress(FileNotFoundError):  # there is no such reader, or it was given up at this moment
            names = os.listdir(self._at / folder)
        records = [self._sidecar.read_json("reader", folder, name) for name in names if name.isdigit()]
        return sorted(filter(None, records), key=itemgetter("epoch"))

    def _holds(self, id: str, delivery: int | None) -> bool:
        received = self._folder.received(id)
        return received is not None and received.delivery == delivery and received.released != 1

    def _is_confirmed(self, id: str, delivery: int | None) -> bool:
        return self._folder.index.get(id, 0) >= FOREVER and self._holds(id, delivery)


def _folder(reader: str) -> str:
    return digest(reader.encode())
