"""The named claims of a queue in memcached: operations on several keys, under the queue's lock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.message import FOREVER, Claim, Held, Message, Settlement
from penstock.stores.memcached.catalogue import MemcachedCatalogue
from penstock.stores.memcached.formats import SLOTS
from penstock.stores.memcached.reader_records import ReaderDocument
from penstock.stores.ports import Readers


class MemcachedReaders(Readers):
    def __init__(self, catalogue: MemcachedCatalogue, queue: str) -> None:
        self._open = partial(catalogue.open, queue)

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._open() as (contents, _):
            readers = contents.readers
            readers.put_holds(reader, epoch, receipts)
            claim = {str(epoch): [len(receipts), False, lapses_at]}
            readers.documents.change(reader, lambda known: known.claims.update(claim))

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._open() as (contents, _):
            known = contents.readers.documents.load(reader)
            epochs = sorted(known.claims, key=int)
            return known.settled, [Claim(reader, int(epoch), *known.claims[epoch]) for epoch in epochs]

    def names(self) -> list[str]:
        with self._open() as (contents, _):
            return sorted(contents.readers.documents.names())

    def confirm(self, reader: str, epoch: int) -> None:
        """Messages first: a claim that is marked as confirmed must not lose them. A sweep repairs a half-done confirmation."""

        def change(known: ReaderDocument) -> None:
            known.claims[str(epoch)][1:] = [True, FOREVER]

        with self._open() as (contents, _):
            contents.extend(contents.readers.holds(reader, epoch), FOREVER)
            contents.readers.documents.change(reader, change)

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._open() as (contents, _):
            holds = contents.readers.holds(reader, epoch)[start:stop]
            if not holds and str(epoch) not in contents.readers.documents.load(reader).claims:
                raise KeyError(epoch)
            wanted = {contents.keys.ids.number(hold.id) or 0: hold.delivery for hold in holds}
            found: dict[int, Message] = {}
            for at, (page, _) in contents.pages.read(sorted({number // SLOTS for number in wanted})).items():
                slots = [
                    number % SLOTS
                    for number, delivery in wanted.items()
                    if number // SLOTS == at and page.is_live(number % SLOTS) and page.delivery[number % SLOTS] == delivery
                ]
                found |= {message.number: message for message in contents.messages(at, page, slots).values()}
            return [found[number] for number in wanted if number in found]

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        """Messages first: a process that dies in between leaves an empty claim, which is settled again."""
        with self._open() as (contents, _):
            readers = contents.readers
            done = sorted(number for number in map(int, readers.documents.load(reader).claims) if number <= epoch)
            holds = [readers.holds(reader, number) for number in done]
            gone = sum(sum(contents.delete(held, settlement, skip_damaged=True)) for held in holds)

            def change(known: ReaderDocument) -> None:
                known.settled = max(epoch, known.settled if known.settled is not None else epoch)
                known.drop(done)

            readers.documents.change(reader, change)
            readers.forget_holds(reader, done)
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._open() as (contents, _):
            readers = contents.readers
            known = readers.documents.find(reader)
            if known is None:
                return 0
            undone = list(map(int, known.claims)) if epoch is None else [epoch]
            given = sum(sum(contents.extend(readers.holds(reader, at), now, release=True)) for at in undone)
            if epoch is not None:
                readers.documents.change(reader, lambda known: known.drop(undone))
            else:
                readers.documents.forget(reader)
            readers.forget_holds(reader, undone)
            return given
