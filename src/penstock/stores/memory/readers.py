"""The named claims of one queue in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.message import FOREVER, Claim, Held, Message, Receipt, Settlement, State
from penstock.stores import messages
from penstock.stores.memory.table import HeldClaim, Reader
from penstock.stores.memory.tables import Tables
from penstock.stores.ports import Readers


class MemoryReaders(Readers):
    """Owns nothing: the readers are in the queue's table."""

    def __init__(self, name: str, tables: Tables) -> None:
        self._name = name
        self._tables = tables

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._tables.lock:
            claims = self._tables.find(self._name).readers.setdefault(reader, Reader()).claims
            claims[epoch] = HeldClaim(
                Claim(reader, epoch, len(receipts), False, lapses_at),
                [Receipt(self._name, receipt.id, receipt.delivery) for receipt in receipts],
            )

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._tables.lock:
            known = self._tables.find(self._name).readers.get(reader, Reader())
            return known.settled, [known.claims[epoch].claim for epoch in sorted(known.claims)]

    def names(self) -> list[str]:
        with self._tables.lock:
            return sorted(self._tables.find(self._name).readers)

    def confirm(self, reader: str, epoch: int) -> None:
        with self._tables.lock:
            table = self._tables.find(self._name)
            held = table.readers[reader].claims[epoch]
            self._tables.change(table)
            for receipt in held.receipts:
                table.extend(receipt, FOREVER, release=False)
            held.claim = replace(held.claim, confirmed=True, lapses_at=FOREVER)
            self._tables.done()

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._tables.lock:
            table = self._tables.find(self._name)
            rows = map(table.find, table.readers[reader].claims[epoch].receipts[start:stop])
            return [messages.copied(row.message) for row in rows if row is not None]

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._tables.lock:
            table = self._tables.find(self._name)
            self._tables.change(table)
            known = table.readers.setdefault(reader, Reader())
            receipts = [
                receipt for number in sorted(known.claims) if number <= epoch for receipt in known.claims[number].receipts
            ]
            gone = 0
            for receipt in receipts:
                row = table.find(receipt)
                if row is not None and row.message.state is not State.DAMAGED:  # those were set aside when they were read
                    gone += table.delete(receipt, settlement)
            settled = epoch if known.settled is None else max(epoch, known.settled)
            left = {number: held for number, held in known.claims.items() if number > epoch}
            known.settled, known.claims = settled, left  # an interrupt comes before both or after both
            self._tables.done()
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._tables.lock:
            table = self._tables.find(self._name)
            known = table.readers.get(reader, Reader())
            undone = list(known.claims.values()) if epoch is None else [known.claims[epoch]]
            self._tables.change(table)
            given = sum(table.extend(receipt, now, release=True) for held in undone for receipt in held.receipts)
            if epoch is None:
                table.readers.pop(reader, None)
            else:
                del known.claims[epoch]
            self._tables.done()
            return given
