"""The named claims of a queue in memcached: operations on several keys, under the queue's lock."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import FOREVER, Claim, Held, Message, Settlement, State
from penstock.stores.memcached.catalogue import Home
from penstock.stores.memcached.formats import SLOTS
from penstock.stores.memcached.messages import CachedMessages
from penstock.stores.memcached.reader_records import Reader, ReaderRecords
from penstock.stores.ports import Readers


class MemcachedReaders(Readers):
    def __init__(self, store: CachedMessages, queue: str) -> None:
        self._store = store
        self._queue = queue

    def _open(self) -> tuple[Home, ReaderRecords]:
        home = self._store._home(self._queue)[0]
        return home, ReaderRecords(home)

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._store.batch():
            _, records = self._open()
            records.put_holds(reader, epoch, receipts)
            claim = {str(epoch): [len(receipts), False, lapses_at]}
            records.change(reader, lambda known: known.claims.update(claim))

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._store.batch():
            _, records = self._open()
            known = records.load(reader)[0]
            epochs = sorted(known.claims, key=int)
            return known.settled, [Claim(reader, int(epoch), *known.claims[epoch]) for epoch in epochs]

    def names(self) -> list[str]:
        with self._store.batch():
            _, records = self._open()
            return sorted(records.names())

    def confirm(self, reader: str, epoch: int) -> None:
        """Messages first: a claim that is marked as confirmed must not lose them. `sweep` repairs a half-done confirmation."""
        with self._store.batch():
            home, records = self._open()
            self._store._extend(home, records.holds(reader, epoch), FOREVER, release=False)

            def change(known: Reader) -> None:
                known.claims[str(epoch)][1:] = [True, FOREVER]

            records.change(reader, change)

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._store.batch():
            home, records = self._open()
            found: dict[int, Message] = {}
            holds = records.holds(reader, epoch)[start:stop]
            if not holds and str(epoch) not in records.load(reader)[0].claims:
                raise KeyError(epoch)
            wanted = [(home.ids.number(hold.id) or 0, hold.delivery) for hold in holds]
            pages = self._store._read(home, sorted({number // SLOTS for number, _ in wanted}))
            for at, (page, _) in pages.items():
                slots = [
                    number % SLOTS
                    for number, delivery in wanted
                    if number // SLOTS == at and page.is_live(number % SLOTS) and page.delivery[number % SLOTS] == delivery
                ]
                found |= {message.number: message for message in self._store._messages(home, at, page, slots).values()}
            return [found[number] for number, _ in wanted if number in found]

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        """Messages first: a process that dies in between leaves an empty claim, which is settled again."""
        with self._store.batch():
            home, records = self._open()
            done = [number for number in map(int, records.load(reader)[0].claims) if number <= epoch]
            holds = [records.holds(reader, number) for number in sorted(done)]
            gone = sum(sum(self._store._delete(home, held, settlement, whole=True)) for held in holds)

            def change(known: Reader) -> None:
                known.settled = max(epoch, known.settled if known.settled is not None else epoch)
                known.drop(done)

            records.change(reader, change)
            records.forget_holds(reader, done)
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._store.batch():
            home, records = self._open()
            known, token = records.load(reader)
            if epoch is None and token is None:
                return 0
            undone = list(map(int, known.claims)) if epoch is None else [epoch]
            given = sum(sum(self._store._extend(home, records.holds(reader, at), now, release=True)) for at in undone)
            if epoch is not None:
                records.change(reader, lambda known: known.drop(undone))
            else:
                records.forget(reader)
            records.forget_holds(reader, undone)
            return given

    def sweep(self, home: Home, now: int) -> None:
        """Give back messages that a reader hid for ever when it died in the middle of a confirmation."""
        records = ReaderRecords(home)
        for name in records.names():
            for epoch, (_, confirmed, lapses_at) in records.load(name)[0].claims.items():
                if not confirmed and lapses_at <= now:
                    hidden = [hold for hold in records.holds(name, int(epoch)) if self._is_hidden(home, hold)]
                    if hidden:
                        self._store._extend(home, hidden, now, release=True)

    def _is_hidden(self, home: Home, hold: Held) -> bool:
        number = home.ids.number(hold.id) or 0
        page, _ = self._store._read(home, [number // SLOTS])[number // SLOTS]
        return page.visible[number % SLOTS] == FOREVER and page.state(number % SLOTS) == State.CONSUMED
