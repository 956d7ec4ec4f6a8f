"""The pages of a queue in memcached: finding one with messages, changing it, and repairing what was evicted.

    tail ─► [gone gone] [gone held] [held held] … [ready ready] … [ready empty] ◄─ head

A claim looks at the first page that may have a visible message. The blocks rule pages out: for each page they have an instant
before which nothing is visible. That instant may be too early (0: look), but never too late. A process that makes a message
visible earlier writes the block after the page. A process that raises an instant reads the block before the page, and writes it
by compare-and-swap.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from penstock.errors import StoreFull
from penstock.message import State
from penstock.stores.memcached.catalogue import SPARES, Home, logger
from penstock.stores.memcached.formats import EMPTY, GONE, NEVER, PAGE_BYTES, SLOTS, VOID, Page, Record
from penstock.stores.memcached.link import Found
from penstock.stores.memcached.records import SMALL, CachedRecords, is_mark_of, mark_key

FAN = 256
"""Pages per block."""
NEAR = 4096
"""How many numbers may be given out whose senders are not done; an evicted head skips this far ahead."""
Read = dict[int, tuple[Page, bytes | None]]


class Survey:
    """Where a queue begins and ends, and what its blocks say."""

    def __init__(self, head: int, tail: int) -> None:
        self.head = head
        self.tail = tail
        self.last = head // SLOTS
        self.blocks: dict[int, array[int]] = {}


class CachedPages(CachedRecords):
    # finding

    def _claim_keys(self, home: Home) -> Sequence[str]:
        """The block comes before the page: see above."""
        return [home.key("b", home.tail // FAN), home.key("head"), home.key("tail"), home.key("p", home.page)]

    def _survey(self, home: Home, found: Found) -> Survey:
        head, tail = found.get(home.key("head")), found.get(home.key("tail"))
        if head is None or tail is None:
            self._recover(home)
            return self._survey(home, home.link.gets(self._claim_keys(home)))
        survey = Survey(int(head[0]), int(tail[0]))
        block = home.tail // FAN
        home.tail = survey.tail
        if block == survey.tail // FAN:
            survey.blocks[block] = _block(found.get(home.key("b", block), (b"", b""))[0])
        return survey

    def _candidates(self, home: Home, survey: Survey, now: int) -> Iterator[int]:
        """The pages that may have a visible message, in order."""
        number = survey.tail
        while number <= survey.last:
            bounds = self._bounds(home, survey, number // FAN)
            start = number % FAN
            for place in range(start, min(FAN, survey.last - number + start + 1)):
                if bounds[place] <= now:
                    yield number + place - start
            number += FAN - start

    def _bounds(self, home: Home, survey: Survey, block: int) -> array[int]:
        if block not in survey.blocks:
            wanted = range(block, min(block + 16, survey.last // FAN + 1))
            found = home.link.get([home.key("b", number) for number in wanted])
            for number in wanted:
                survey.blocks[number] = _block(found.get(home.key("b", number), b""))
        return survey.blocks[block]

    def _raise(self, home: Home, number: int) -> None:
        """Record the first instant at which a full page has a visible message."""
        block, key = home.key("b", number // FAN), home.key("p", number)
        found = home.link.gets([block, key])
        raw, token = found.get(block, (b"", None))
        if key in found:
            page = Page(found[key][0])
            bounds = _block(raw)
            first = min(page.visible)
            if page.is_sealed() and bounds[number % FAN] != first:
                bounds[number % FAN] = first
                home.link.cas(block, bounds.tobytes(), token)  # if this fails, the next one will do it

    def _lower(self, home: Home, numbers: Iterable[int]) -> None:
        """Something in these pages becomes visible earlier than the blocks may say."""
        for block in {number // FAN for number in numbers}:
            key = home.key("b", block)
            while True:
                raw, token = home.link.gets([key]).get(key, (b"", None))
                bounds = _block(raw)
                for number in numbers:
                    if number // FAN == block:
                        bounds[number % FAN] = 0
                if home.link.cas(key, bounds.tobytes(), token):  # even if it changes nothing: see above
                    break
        home.link.nudge(home.key("stir"))

    # changing

    def _read(self, home: Home, numbers: Sequence[int]) -> Read:
        found = home.link.gets([home.key("p", number) for number in numbers])
        return {number: self._page(home, number, found) for number in numbers}

    def _page(self, home: Home, number: int, found: Found) -> tuple[Page, bytes | None]:
        value = found.get(home.key("p", number))
        if value is None:
            return self._rebuild(home, number)
        home.seen = max(home.seen, number)
        return Page(value[0]), value[1]

    def _edit(self, home: Home, number: int, edit: Callable[[Page], bool]) -> Page:
        """Change a page, retrying while others are faster. ``edit`` returns whether there is something to change."""
        while True:
            page, token = self._read(home, [number])[number]
            if not edit(page) or token is None or self._write(home, number, page, token):
                return page  # without a token the tail has passed the page: it must not be recreated

    def _write(self, home: Home, number: int, page: Page, token: bytes | None) -> bool | None:
        """A new page needs memory before the old one's is freed. If there is none, give up a spare."""
        packed = page.pack()
        try:
            return home.link.cas(home.key("p", number), packed, token)
        except StoreFull:
            for spare in range(SPARES):
                home.link.forget([home.key("spare", spare)])
                with suppress(StoreFull):
                    done = home.link.cas(home.key("p", number), packed, token)
                    self._spare(home)
                    return done
            raise

    def _spare(self, home: Home) -> None:
        with suppress(StoreFull):
            for spare in range(SPARES):
                home.link.add(home.key("spare", spare), bytes(PAGE_BYTES))

    def _void(self, home: Home, survey: Survey, number: int, page: Page) -> bool:
        """Void the slots whose senders did not come, long after others did. Returns whether the page is full then."""
        if page.is_sealed() or survey.head < (number + 2) * SLOTS:
            return page.is_sealed()

        def edit(page: Page) -> bool:
            for slot in range(SLOTS):
                if page.states[slot] == EMPTY:
                    page.clear(slot, VOID)
            return True

        self._retire(home, self._edit(home, number, edit))
        return True

    def _retire(self, home: Home, page: Page) -> None:
        """An empty page is a tombstone. The tail moves past tombstones, and then they are deleted."""
        if not page.is_dead():
            return
        while True:
            value, token = home.link.gets([home.key("tail")]).get(home.key("tail"), (b"", None))
            if token is None:
                return
            start = home.tail = int(value)
            ahead = range(start, start + 16)
            found = home.link.get([home.key("p", at) for at in ahead])
            dead = 0
            while dead < len(ahead) and _is_tombstone(found.get(home.key("p", ahead[dead]))):
                dead += 1
            if not dead:
                return
            if home.link.cas(home.key("tail"), b"%d" % (start + dead), token):
                home.tail = start + dead
                self._remove(home, range(max(0, start - 1), start + dead))  # one more, left by a process that died
                if dead < len(ahead):
                    return

    def _remove(self, home: Home, pages: range) -> None:
        numbers = range(pages.start * SLOTS, pages.stop * SLOTS)
        self._discard(home, self._records(home, numbers), dead=True)
        blocks = [home.key("b", number // FAN) for number in pages if number % FAN == FAN - 1]
        home.link.forget([*[home.key("p", number) for number in pages], *blocks])

    # repairing

    def _rebuild(self, home: Home, number: int) -> tuple[Page, bytes | None]:
        """A missing page was never made, was passed by the tail, or was evicted; the records tell what was in it."""
        key = home.key("p", number)
        while True:
            survey = self._survey(home, home.link.gets(self._claim_keys(home)))
            if not survey.tail <= number <= survey.last:
                return Page.new(number, VOID), None
            near = survey.head < (number + 1) * SLOTS + NEAR
            page = Page.new(number, EMPTY if near else GONE)
            numbers = range(number * SLOTS, (number + 1) * SLOTS)
            records = self._records(home, numbers)
            settled = home.link.get([home.key("h", at) for at in numbers])
            for at, record in records.items():
                if self._is_orphan(home, at, record):
                    continue
                page.fill(at % SLOTS, record, parted=len(record.pack()) > SMALL)
                page.delivery[at % SLOTS] += 1 << 20  # no earlier receipt matches
                if home.key("h", at) in settled:
                    page.become(at % SLOTS, State.PROCESSED, NEVER)
            home.link.add(key, page.pack())
            found = home.link.gets([key, home.key("tail")])
            if self._is_past(home, number, found):  # the tail has passed it since: nobody looks here any more
                home.link.forget([key])
            elif key in found:
                if number <= home.seen:
                    logger.error(
                        "%s has evicted page %d of queue %r; it was rebuilt with %d messages",
                        home.link,
                        number,
                        home.name,
                        len(records),
                    )
                self._lower(home, [number])
                return self._page(home, number, found)

    def _is_past(self, home: Home, number: int, found: Found) -> bool:
        return number < int(found.get(home.key("tail"), (b"0", b""))[0])

    def _is_orphan(self, home: Home, number: int, record: Record) -> bool:
        """Whether this is a copy of a moved message whose mover died, and which another process moved again."""
        if record.moved_id is None:
            return False
        key = mark_key(home, record.note)
        note = home.link.get([key]).get(key)
        return note is not None and not is_mark_of(number, note)

    def _recover(self, home: Home) -> None:
        """Find the ends of a queue whose counters were evicted: its pages are contiguous."""
        link = home.link
        if home.key("tail") not in link.get([home.key("tail")]):
            head = int(link.get([home.key("head")]).get(home.key("head"), b"%d" % (home.seen * SLOTS)))
            first = last = max(0, head // SLOTS)
            while first > 0 and (found := self._there(home, range(max(0, first - SLOTS), first))):
                first = min(found)
            link.add(home.key("tail"), b"%d" % min(first, last))
            logger.error("%s has evicted where queue %r begins; it was found again at page %d", link, home.name, first)
        if home.key("head") not in link.get([home.key("head")]):
            last = int(link.get([home.key("tail")]).get(home.key("tail"), b"0"))
            while found := self._there(home, range(last, last + SLOTS)):
                last = max(found) + 1
            link.add(home.key("head"), b"%d" % (last * SLOTS + NEAR))
            logger.error("%s has evicted where queue %r ends; it was found again at page %d", link, home.name, last)

    def _there(self, home: Home, pages: range) -> list[int]:
        found = home.link.get([home.key("p", number) for number in pages])
        return [number for number in pages if home.key("p", number) in found]

    def _lose(self, home: Home, numbers: Iterable[int]) -> None:
        """Count messages as lost, because their records were evicted."""
        for number in numbers:

            def edit(page: Page, slot: int = number % SLOTS) -> bool:
                page.clear(slot)
                return True

            self._retire(home, self._edit(home, number // SLOTS, edit))
            if home.link.incr(home.key("lost"), 1) is None:
                home.link.add(home.key("lost"), b"1")
            logger.error("%s has lost message %s of queue %r: it was evicted", home.link, home.ids.make(number), home.name)


def _block(raw: bytes) -> array[int]:
    return array("q", raw if len(raw) == FAN * 8 else bytes(FAN * 8))


def _is_tombstone(packed: bytes | None) -> bool:
    return packed is not None and Page(packed).is_dead()
