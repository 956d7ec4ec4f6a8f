"""Queues behind the memcached protocol (SimpleMessageQueue): not durable, shared by all processes that reach the server.

    memcached://host:port[,host:port…]/prefix

The layers, from the ground: `memcached_link` the connection; `slots` the formats; `cached_catalogue` the queues and locks;
`cached_pages` where messages are; `cached_sending`, `cached_messages`, `cached_views` what happens to them; here, named claims
and tending. Named claims are the steps of several keys that need the lock; what each reader holds:

    readers    [name]
    rNAME      {"name", "settled": epoch or null, "claims": {epoch: [size, confirmed, lapses_at]}}
    rNAME.N    the numbers and deliveries of epoch N, 16 bytes each; further parts .1, .2 …
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from penstock.message import FOREVER, Claim, Held, Message, Receipt, Settlement, State
from penstock.stores.memcached.catalogue import Home, digest, logger
from penstock.stores.memcached.formats import MARKED, SETTLED, SLOTS, Page
from penstock.stores.memcached.outbox import MemcachedLedger, MemcachedStaging
from penstock.stores.memcached.pages import FAN
from penstock.stores.memcached.records import MARK, mark_key
from penstock.stores.memcached.views import CachedViews
from penstock.stores.ports import Outbox

HOLD = Struct("<qq")
PART = 4000
SWEEP_PAGES = 32


@dataclass(slots=True)
class _Reader:
    name: str
    settled: int | None = None
    claims: dict[str, list[Any]] = field(default_factory=dict)


class MemcachedStore(CachedViews):
    def __init__(self, servers: Sequence[tuple[str, int]], prefix: str, *, timeout: float = 3) -> None:
        super().__init__(servers, prefix, timeout=timeout)
        self.outbox = Outbox(MemcachedStaging(self), MemcachedLedger(self))

    def hold(self, queue: str, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self.batch():
            home = self._home(queue)[0]
            # Messages know their number here; what was moved here has another's id.
            numbers = [getattr(receipt, "number", None) or home.ids.number(receipt.id) or 0 for receipt in receipts]
            holds = zip(numbers, receipts, strict=True)
            packed = b"".join(HOLD.pack(number, receipt.delivery or 0) for number, receipt in holds)
            key = home.key("r", f"{digest(reader.encode())}.{epoch}.")
            home.link.put({f"{key}{at}": packed[at * PART : (at + 1) * PART] for at in range(-(-len(packed) // PART))})

            def change(known: _Reader) -> None:
                known.claims[str(epoch)] = [len(receipts), False, lapses_at]

            self._change_reader(home, reader, change)

    def held(self, queue: str, reader: str) -> tuple[int | None, list[Claim]]:
        with self.batch():
            known = self._reader(self._home(queue)[0], reader)[0]
            epochs = sorted(known.claims, key=int)
            return known.settled, [Claim(reader, int(epoch), *known.claims[epoch]) for epoch in epochs]

    def readers(self, queue: str) -> list[str]:
        with self.batch():
            home, found = self._home(queue, lambda home: [home.key("readers")])
            return sorted(json.loads(found.get(home.key("readers"), (b"[]", b""))[0]))

    def confirm(self, queue: str, reader: str, epoch: int) -> None:
        """The messages first: a claim that says it is confirmed must not lose them. `sweep` mends the half of it."""
        with self.batch():
            home = self._home(queue)[0]
            self._extend(home, self._holds(home, reader, epoch), FOREVER, release=False)

            def change(known: _Reader) -> None:
                known.claims[str(epoch)][1:] = [True, FOREVER]

            self._change_reader(home, reader, change)

    def read(self, queue: str, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self.batch():
            home = self._home(queue)[0]
            found: dict[int, Message] = {}
            holds = self._holds(home, reader, epoch)[start:stop]
            if not holds and str(epoch) not in self._reader(home, reader)[0].claims:
                raise KeyError(epoch)
            wanted = [(home.ids.number(hold.id) or 0, hold.delivery) for hold in holds]
            pages = self._read(home, sorted({number // SLOTS for number, _ in wanted}))
            for at, (page, _) in pages.items():
                slots = [
                    number % SLOTS
                    for number, delivery in wanted
                    if number // SLOTS == at and page.is_live(number % SLOTS) and page.delivery[number % SLOTS] == delivery
                ]
                found |= {message.number: message for message in self._messages(home, at, page, slots).values()}
            return [found[number] for number, _ in wanted if number in found]

    def settle(self, queue: str, reader: str, epoch: int, settlement: Settlement) -> int:
        """The messages first: who dies in between leaves a claim of which nothing is left, and settles it again."""
        with self.batch():
            home = self._home(queue)[0]
            done = [number for number in map(int, self._reader(home, reader)[0].claims) if number <= epoch]
            holds = [self._holds(home, reader, number) for number in sorted(done)]
            gone = sum(sum(self._delete(home, held, settlement, whole=True)) for held in holds)

            def change(known: _Reader) -> None:
                known.settled = max(epoch, known.settled if known.settled is not None else epoch)
                for number in done:
                    known.claims.pop(str(number), None)

            self._change_reader(home, reader, change)
            self._forget_holds(home, reader, done)
            return gone

    def give_back(self, queue: str, reader: str, epoch: int | None, now: int) -> int:
        with self.batch():
            home = self._home(queue)[0]
            known, token = self._reader(home, reader)
            if epoch is None and token is None:
                return 0
            undone = list(map(int, known.claims)) if epoch is None else [epoch]
            given = sum(sum(self._extend(home, self._holds(home, reader, at), now, release=True)) for at in undone)

            def change(known: _Reader) -> None:
                for number in undone:
                    known.claims.pop(str(number), None)

            if epoch is not None:
                self._change_reader(home, reader, change)
            else:
                home.link.forget([home.key("r", digest(reader.encode()))])
                self._enter(home, reader, present=False)  # last: a reader that has a record must be in the list
            self._forget_holds(home, reader, undone)
            return given

    # the records of readers

    def _reader(self, home: Home, reader: str) -> tuple[_Reader, bytes | None]:
        key = home.key("r", digest(reader.encode()))
        raw, token = home.link.gets([key]).get(key, (None, None))
        return (_Reader(reader), None) if raw is None else (_Reader(**json.loads(raw)), token)

    def _change_reader(self, home: Home, reader: str, change: Callable[[_Reader], None]) -> None:
        key = home.key("r", digest(reader.encode()))
        while True:
            known, token = self._reader(home, reader)
            if token is None:
                self._enter(home, reader, present=True)
            change(known)
            fields = {"name": known.name, "settled": known.settled, "claims": known.claims}
            if home.link.cas(key, json.dumps(fields).encode(), token):
                return

    def _enter(self, home: Home, reader: str, *, present: bool) -> None:
        key = home.key("readers")
        while True:
            raw, token = home.link.gets([key]).get(key, (b"[]", None))
            names = set(json.loads(raw)) - {reader} | ({reader} if present else set())
            if home.link.cas(key, json.dumps(sorted(names)).encode(), token):
                return

    def _holds(self, home: Home, reader: str, epoch: int) -> list[Receipt]:
        claim = self._reader(home, reader)[0].claims.get(str(epoch))
        if claim is None:
            return []
        parts = range(-(-claim[0] * HOLD.size // PART))
        keys = [home.key("r", f"{digest(reader.encode())}.{epoch}.{part}") for part in parts]
        found = home.link.get(keys) if keys else {}
        if len(found) < len(keys):
            logger.error("%s has evicted part of claim %d of reader %r of queue %r", home.link, epoch, reader, home.name)
        packed = b"".join(found.get(key, b"") for key in keys)
        return [Receipt(home.name, home.ids.make(number), delivery) for number, delivery in HOLD.iter_unpack(packed)]

    def _forget_holds(self, home: Home, reader: str, epochs: Sequence[int]) -> None:
        for epoch in epochs:
            key = home.key("r", f"{digest(reader.encode())}.{epoch}.")
            parts = 1
            while home.link.get([f"{key}{parts}"]):
                parts += 1
            home.link.forget([f"{key}{part}" for part in range(parts)])

    def _held_numbers(self, home: Home) -> dict[int, int]:
        names = json.loads(home.link.get([home.key("readers")]).get(home.key("readers"), b"[]"))
        return {
            home.ids.number(hold.id) or 0: hold.delivery or 0
            for name in names
            for epoch in self._reader(home, name)[0].claims
            for hold in self._holds(home, name, int(epoch))
        }

    # tending

    def sweep(self, queue: str, now: int) -> bool:
        """A part of the queue each time: old history goes, and what was lost or cut short is mended."""
        with self.batch():
            home, found = self._home(queue, self._claim_keys)
            survey = self._survey(home, found)
            start = home.swept if survey.tail <= home.swept <= survey.last else survey.tail
            home.swept = min(start + SWEEP_PAGES, survey.last + 1)
            more = False
            pages = list(range(start, home.swept))
            for at, (page, _) in (self._read(home, pages) if pages else {}).items():
                self._resume_page(home, at, page, page.ready(now), now)
                if min(page.visible) < self._bounds(home, survey, at // FAN)[at % FAN]:
                    self._lower(home, [at])  # whoever made something visible earlier died before it could say so
                more |= self._sweep_history(home, at, page, now)
                self._sweep_marks(home, at, page)
                self._void(home, survey, at, page)
                if at == survey.tail:
                    self._retire(home, page)  # its last deleter may have died
            self._sweep_claims(home, now)
            self._spare(home)
            for bucket in self._buckets():
                for name, born in bucket["gone"]:
                    self._bury(name, born)
            return more

    def _sweep_history(self, home: Home, at: int, page: Page, now: int) -> bool:
        notes = self._notes(home, at, page)
        kept = {number for number, note in notes.items() if note[3] > now}
        before: list[tuple[int, int]] = []

        def edit(page: Page) -> bool:
            before.clear()
            for slot in range(SLOTS):
                if page.state(slot) in SETTLED and at * SLOTS + slot not in kept:
                    before.append((at * SLOTS + slot, page.states[slot]))
                    page.clear(slot)
            return bool(before)

        if len(kept) < sum(page.state(slot) in SETTLED for slot in range(SLOTS)):
            changed = self._edit(home, at, edit)
            records = self._records(home, [number for number, _ in before])
            self._tell_movers(home, records)
            self._discard(home, records)
            home.link.forget([home.key("h", number) for number, _ in before])
            self._retire(home, changed)
        return bool(before)

    def _sweep_marks(self, home: Home, at: int, page: Page) -> None:
        """Write the marks again that were evicted."""
        numbers = [at * SLOTS + slot for slot in page.live() if page.states[slot] & MARKED]
        if not numbers:
            return
        records = self._records(home, numbers)
        marks = {number: mark for number, record in records.items() if (mark := record.own_mark) is not None}
        there = home.link.get([mark_key(home, mark) for mark in marks.values()])
        for number, mark in marks.items():
            if mark_key(home, mark) not in there and home.link.add(mark_key(home, mark), MARK.pack(number, FOREVER)):
                logger.error("%s has evicted a mark of queue %r; it was written again", home.link, home.name)

    def _sweep_claims(self, home: Home, now: int) -> None:
        """Give back what a reader that died in the middle of a confirmation has hidden for ever."""
        for name in json.loads(home.link.get([home.key("readers")]).get(home.key("readers"), b"[]")):
            for epoch, (_, confirmed, lapses_at) in self._reader(home, name)[0].claims.items():
                if not confirmed and lapses_at <= now:
                    self._give_back_hidden(home, self._holds(home, name, int(epoch)), now)

    def _give_back_hidden(self, home: Home, holds: Sequence[Receipt], now: int) -> None:
        hidden = []
        for hold in holds:
            number = home.ids.number(hold.id) or 0
            page, _ = self._read(home, [number // SLOTS])[number // SLOTS]
            if page.visible[number % SLOTS] == FOREVER and page.state(number % SLOTS) == State.CONSUMED:
                hidden.append(hold)
        if hidden:
            self._extend(home, hidden, now, release=True)

    def _clear(self, home: Home) -> None:
        """All that a dropped queue has left."""
        found = home.link.gets(self._claim_keys(home))
        if home.key("head") not in found:
            return
        survey = self._survey(home, found)
        for at in range(survey.tail, survey.last + 1):
            self._remove(home, range(at, at + 1))
        names = json.loads(home.link.get([home.key("readers")]).get(home.key("readers"), b"[]"))
        for name in names:
            self._forget_holds(home, name, list(map(int, self._reader(home, name)[0].claims)))
            home.link.forget([home.key("r", digest(name.encode()))])
        ends = ["tail", "stir", "lost", "readers", f"b{survey.last // 256}", "spare0", "spare1", "spare2", "head"]
        home.link.forget([home.key(kind) for kind in ends])
