"""Queues behind the memcached protocol (SimpleMessageQueue): not durable, shared by all processes that reach the server.

    memcached://host:port[,host:port…]/prefix

The layers, from the bottom: `link` is the connection; `formats` has pages and records; `catalogue` the queues and locks;
`pages` finds messages; `sending`, `messages` and `views` operate on them; this module cleans up. `readers` keeps the named
claims and `outbox` what writers stage and publish, both in the records of `listed`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import FOREVER
from penstock.stores.memcached.catalogue import Home, logger
from penstock.stores.memcached.formats import MARKED, SETTLED, SLOTS, Page
from penstock.stores.memcached.outbox import MemcachedLedger, MemcachedStaging
from penstock.stores.memcached.pages import FAN
from penstock.stores.memcached.reader_records import ReaderRecords
from penstock.stores.memcached.readers import MemcachedReaders
from penstock.stores.memcached.records import MARK, mark_key
from penstock.stores.memcached.views import CachedViews
from penstock.stores.ports import Outbox, Readers

SWEEP_PAGES = 32


class MemcachedStore(CachedViews):
    def __init__(self, servers: Sequence[tuple[str, int]], prefix: str, *, timeout: float = 3) -> None:
        super().__init__(servers, prefix, timeout=timeout)
        self.outbox = Outbox(MemcachedStaging(self), MemcachedLedger(self))

    def readers(self, queue: str) -> Readers:
        return MemcachedReaders(self, queue)

    # cleaning up

    def sweep(self, queue: str, now: int) -> bool:
        """Process a part of the queue each time: remove old history, and repair what was lost or interrupted."""
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
                    self._lower(home, [at])  # a process may have died between the page and the block
                more |= self._sweep_history(home, at, page, now)
                self._sweep_marks(home, at, page)
                self._void(home, survey, at, page)
                if at == survey.tail:
                    self._retire(home, page)  # the process that deleted its last message may have died
            MemcachedReaders(self, queue).sweep(home, now)
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
        """Rewrite marks that were evicted."""
        numbers = [at * SLOTS + slot for slot in page.live() if page.states[slot] & MARKED]
        if not numbers:
            return
        records = self._records(home, numbers)
        marks = {number: mark for number, record in records.items() if (mark := record.own_mark) is not None}
        there = home.link.get([mark_key(home, mark) for mark in marks.values()])
        for number, mark in marks.items():
            if mark_key(home, mark) not in there and home.link.add(mark_key(home, mark), MARK.pack(number, FOREVER)):
                logger.error("%s has evicted a mark of queue %r; it was written again", home.link, home.name)

    def _clear(self, home: Home) -> None:
        """Delete everything that a dropped queue has left."""
        found = home.link.gets(self._claim_keys(home))
        if home.key("head") not in found:
            return
        survey = self._survey(home, found)
        for at in range(survey.tail, survey.last + 1):
            self._remove(home, range(at, at + 1))
        ReaderRecords(home).clear()
        ends = ["tail", "stir", "lost", f"b{survey.last // 256}", "spare0", "spare1", "spare2", "head"]
        home.link.forget([home.key(kind) for kind in ends])
