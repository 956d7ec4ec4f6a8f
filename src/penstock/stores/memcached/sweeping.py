"""Clearing and repairing a queue in memcached, a slice at a time: old history, and what was evicted or interrupted."""

from __future__ import annotations

from penstock.message import FOREVER, Receipt, State
from penstock.stores.memcached.catalogue import MemcachedCatalogue
from penstock.stores.memcached.contents import Contents
from penstock.stores.memcached.formats import MARKED, SETTLED, SLOTS, STATE, Page
from penstock.stores.memcached.moving import Mover
from penstock.stores.memcached.pages import Survey
from penstock.stores.memcached.records import MARK

PAGES, RECORDS = 32, 128
"""A slice ends after so many pages, or so many messages that cost a look at their record or note."""


class Sweep:
    """One slice of a sweep. Goes on where the last one of this process ended."""

    def __init__(self, catalogue: MemcachedCatalogue, contents: Contents, survey: Survey, now: int) -> None:
        self._contents = contents
        self._keys = contents.keys
        self._mover = Mover(catalogue, contents)
        self._survey = survey
        self._now = now
        self._lapsed: dict[int, int] | None = None

    def sweep(self) -> bool:
        """Returns whether something was cleared, so that there may be more."""
        keys, survey = self._keys, self._survey
        start = keys.swept if survey.tail <= keys.swept <= survey.last else survey.tail
        cleared, left = False, RECORDS
        for at, (page, _) in self._contents.pages.read(range(start, min(start + PAGES, survey.last + 1))).items():
            cleared |= self._sweep_page(at, page)
            keys.swept = at + 1
            left -= sum(status & MARKED != 0 or status & STATE in SETTLED for status in page.states)
            if left <= 0:
                break
        self._contents.pages.fill_spares()
        return cleared

    def _sweep_page(self, at: int, page: Page) -> bool:
        pages = self._contents.pages
        self._mover.resume(at, page, page.ready(self._now), self._now)
        if min(page.visible) < self._survey.bound(at):
            pages.lower_bounds([at])  # a process may have died between the page and the block
        cleared = self._contents.clear_old(at, page, self._now)
        self._restore_marks(at, page)
        self._give_back(at, page)
        pages.void(self._survey, at, page)
        if at == self._survey.tail:
            pages.retire(page)  # the process that deleted its last message may have died
        return cleared

    def _restore_marks(self, at: int, page: Page) -> None:
        """Write marks that were evicted again."""
        keys = self._keys
        numbers = [at * SLOTS + slot for slot in page.live() if page.states[slot] & MARKED]
        records = self._contents.records.load(numbers)
        marks = {number: keys.mark(mark) for number, record in records.items() if (mark := record.own_mark) is not None}
        there = keys.link.get(marks.values())
        for number, key in marks.items():
            if key not in there and keys.link.add(key, MARK.pack(number, FOREVER)):
                keys.report("has evicted a mark; it was written again")

    def _give_back(self, at: int, page: Page) -> None:
        """Release messages that a reader hid for ever when it died in the middle of a confirmation."""
        held = {at * SLOTS + slot: page.delivery[slot] for slot in page.live() if _is_hidden(page, slot)}
        if not held:
            return
        if self._lapsed is None:
            self._lapsed = self._contents.readers.held(lapsed_by=self._now)
        ids, name = self._keys.ids, self._keys.name
        lapsed = [Receipt(name, ids.make(number), held[number]) for number in held if self._lapsed.get(number) == held[number]]
        if lapsed:
            self._contents.extend(lapsed, self._now, release=True)


def _is_hidden(page: Page, slot: int) -> bool:
    return page.visible[slot] == FOREVER and page.state(slot) == State.CONSUMED
