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
from penstock.stores.memcached.formats import EMPTY, GONE, NEVER, PAGE_BYTES, SLOTS, VOID, Page
from penstock.stores.memcached.link import Items
from penstock.stores.memcached.records import FAN, SMALL, SPARES, Keyspace, MessageRecords

NEAR = 4096
"""How many numbers may be given out whose senders are not done; an evicted head skips this far ahead."""
AT_ONCE = 64
"""Pages per command when all of them are read."""
Read = dict[int, tuple[Page, bytes | None]]


class Survey:
    """Where a queue begins and ends, and which of its pages may have a visible message."""

    def __init__(self, keys: Keyspace, head: int, tail: int) -> None:
        self.head = head
        self.tail = tail
        self.last = head // SLOTS
        self._keys = keys
        self._blocks: dict[int, array[int]] = {}

    def learn(self, block: int, raw: bytes) -> None:
        self._blocks[block] = _block(raw)

    def candidates(self, now: int) -> Iterator[int]:
        """The pages that may have a visible message, in order."""
        at = self.tail
        while at <= self.last:
            bounds = self._bounds(at // FAN)
            end = min(at - at % FAN + FAN, self.last + 1)
            for page in range(at, end):
                if bounds[page % FAN] <= now:
                    yield page
            at = end

    def bound(self, page: int) -> int:
        """An instant before which the page has nothing visible; 0 if it is not known."""
        return self._bounds(page // FAN)[page % FAN]

    def _bounds(self, block: int) -> array[int]:
        if block not in self._blocks:
            wanted = range(block, min(block + 16, self.last // FAN + 1))
            found = self._keys.link.get([self._keys.key("b", number) for number in wanted])
            for number in wanted:
                self.learn(number, found.get(self._keys.key("b", number), b""))
        return self._blocks[block]


class Pages:
    """Owns the pages, blocks and counters of one queue."""

    def __init__(self, keys: Keyspace, records: MessageRecords) -> None:
        self._keys = keys
        self._link = keys.link
        self._records = records

    # finding

    def survey(self, found: Items | None = None) -> Survey:
        """From the values of `Keyspace.first_reads`."""
        keys = self._keys
        while True:
            found = self._link.gets(keys.first_reads()) if found is None else found
            head, tail = found.get(keys.key("head")), found.get(keys.key("tail"))
            if head is not None and tail is not None:
                break
            self.recover()
            found = None
        survey = Survey(keys, int(head[0]), int(tail[0]))
        block = keys.tail // FAN
        keys.tail = survey.tail
        if block == survey.tail // FAN:
            survey.learn(block, found.get(keys.key("b", block), (b"", b""))[0])
        return survey

    def all(self, survey: Survey, start: int = 0) -> Iterator[tuple[int, Page]]:
        """All pages, or those from ``start`` on."""
        first = max(survey.tail, start)
        for at in range(first, survey.last + 1, AT_ONCE):
            for number, (page, _) in self.read(range(at, min(at + AT_ONCE, survey.last + 1))).items():
                yield number, page

    def read(self, numbers: Sequence[int]) -> Read:
        found = self._link.gets([self._keys.key("p", number) for number in numbers])
        return {number: self.page(number, found) for number in numbers}

    def read_one(self, number: int) -> tuple[Page, bytes | None]:
        return self.read([number])[number]

    def page(self, number: int, found: Items) -> tuple[Page, bytes | None]:
        value = found.get(self._keys.key("p", number))
        if value is None:
            return self._rebuild(number)
        self._keys.seen = max(self._keys.seen, number)
        return Page(value[0]), value[1]

    def page_to_fill(self, number: int, found: Items) -> tuple[Page, bytes | None]:
        """A page that was never there is new, and has no token."""
        if number > self._keys.seen and self._keys.key("p", number) not in found:
            return Page.new(number), None
        return self.page(number, found)

    # blocks

    def raise_bound(self, number: int) -> None:
        """Record the first instant at which a full page has a visible message."""
        block, key = self._keys.key("b", number // FAN), self._keys.key("p", number)
        found = self._link.gets([block, key])
        raw, token = found.get(block, (b"", None))
        if key in found:
            page = Page(found[key][0])
            bounds = _block(raw)
            first = min(page.visible)
            if page.is_sealed() and bounds[number % FAN] != first:
                bounds[number % FAN] = first
                with suppress(StoreFull):  # if this fails, the next claim will do it
                    self._link.cas(block, bounds.tobytes(), token)

    def lower_bounds(self, numbers: Iterable[int]) -> None:
        """Something in these pages becomes visible earlier than the blocks may say."""
        for block in {number // FAN for number in numbers}:
            key = self._keys.key("b", block)
            while True:
                raw, token = self._link.gets([key]).get(key, (b"", None))
                bounds = _block(raw)
                for number in numbers:
                    if number // FAN == block:
                        bounds[number % FAN] = 0
                if self._link.cas(key, bounds.tobytes(), token):  # even if it changes nothing: see above
                    break
        self._link.nudge(self._keys.key("stir"))

    # changing

    def edit(self, number: int, edit: Callable[[Page], bool]) -> Page:
        """Change a page, retrying while others are faster. ``edit`` returns whether there is something to change."""
        while True:
            page, token = self.read_one(number)
            if not edit(page) or token is None or self.write(number, page, token):
                return page  # without a token the tail has passed the page: it must not be recreated

    def write(self, number: int, page: Page, token: bytes | None) -> bool | None:
        """A new page needs memory before the old one's is freed. If there is none, give up a spare."""
        key, packed = self._keys.key("p", number), page.pack()
        try:
            return self._link.cas(key, packed, token)
        except StoreFull:
            for spare in range(SPARES):
                self._link.forget([self._keys.key("spare", spare)])
                with suppress(StoreFull):
                    done = self._link.cas(key, packed, token)
                    self.fill_spares()
                    return done
            raise

    def fill_spares(self) -> None:
        with suppress(StoreFull):
            for spare in range(SPARES):
                self._link.add(self._keys.key("spare", spare), bytes(PAGE_BYTES))

    def void(self, survey: Survey, number: int, page: Page) -> bool:
        """Void the slots whose senders did not come, long after others did. Returns whether the page is full then."""
        if page.is_sealed() or survey.head < (number + 2) * SLOTS:
            return page.is_sealed()

        def edit(page: Page) -> bool:
            for slot in range(SLOTS):
                if page.states[slot] == EMPTY:
                    page.clear(slot, VOID)
            return True

        self.retire(self.edit(number, edit))
        return True

    def retire(self, page: Page) -> None:
        """An empty page is a tombstone. The tail moves past tombstones, and then they are deleted."""
        keys, tail = self._keys, self._keys.key("tail")
        while page.is_dead():
            value, token = self._link.gets([tail]).get(tail, (b"", None))
            if token is None:
                return
            start = keys.tail = int(value)
            ahead = range(start, start + 16)
            found = self._link.get([keys.key("p", at) for at in ahead])
            dead = 0
            while dead < len(ahead) and _is_tombstone(found.get(keys.key("p", ahead[dead]))):
                dead += 1
            if not dead:
                return
            if self._link.cas(tail, b"%d" % (start + dead), token):
                keys.tail = start + dead
                self.remove(range(max(0, start - 1), start + dead))  # one more, left by a process that died
                if dead < len(ahead):
                    return

    def remove(self, pages: range) -> None:
        numbers = range(pages.start * SLOTS, pages.stop * SLOTS)
        self._records.discard(self._records.load(numbers), dead=True)
        blocks = [self._keys.key("b", number // FAN) for number in pages if number % FAN == FAN - 1]
        self._link.forget([*[self._keys.key("p", number) for number in pages], *blocks])

    # repairing

    def _rebuild(self, number: int) -> tuple[Page, bytes | None]:
        """A missing page was never made, was passed by the tail, or was evicted; the records tell what was in it."""
        key = self._keys.key("p", number)
        while True:
            survey = self.survey()
            if not survey.tail <= number <= survey.last:
                return Page.new(number, VOID), None
            near = survey.head < (number + 1) * SLOTS + NEAR
            page = Page.new(number, EMPTY if near else GONE)
            numbers = range(number * SLOTS, (number + 1) * SLOTS)
            records = self._records.load(numbers)
            settled = self._link.get([self._keys.key("h", at) for at in numbers])
            for at, record in records.items():
                if self._records.is_orphan(at, record):
                    continue
                self._records.restore_mark(at, record)
                if self._records.is_outrun(at, record):
                    continue
                page.fill(at % SLOTS, record, parted=len(record.pack()) > SMALL)
                page.delivery[at % SLOTS] += 1 << 20  # no earlier receipt matches
                if self._keys.key("h", at) in settled:
                    page.become(at % SLOTS, State.PROCESSED, NEVER)
            self._link.add(key, page.pack())
            found = self._link.gets([key, self._keys.key("tail")])
            if self.is_past(number, found):  # the tail has passed it since: nobody looks here any more
                self._link.forget([key])
            elif key in found:
                if number <= self._keys.seen:
                    self._keys.report(f"has evicted page {number}; it was rebuilt with {len(records)} messages")
                self.lower_bounds([number])
                return self.page(number, found)

    def is_past(self, number: int, found: Items | None = None) -> bool:
        """Whether the tail has passed a page: nobody will look there any more."""
        tail = self._keys.key("tail")
        found = self._link.gets([tail]) if found is None else found
        return number < int(found.get(tail, (b"0", b""))[0])

    def recover(self) -> None:
        """Find the ends of a queue whose counters were evicted: its pages are contiguous."""
        keys, link = self._keys, self._link
        head, tail = keys.key("head"), keys.key("tail")
        if tail not in link.get([tail]):
            first = last = max(0, int(link.get([head]).get(head, b"%d" % (keys.seen * SLOTS))) // SLOTS)
            while first > 0 and (there := self._existing(range(max(0, first - SLOTS), first))):
                first = min(there)
            link.add(tail, b"%d" % min(first, last))
            keys.report(f"has evicted where it begins; it was found again at page {first}")
        if head not in link.get([head]):
            last = int(link.get([tail]).get(tail, b"0"))
            while there := self._existing(range(last, last + SLOTS)):
                last = max(there) + 1
            link.add(head, b"%d" % (last * SLOTS + NEAR))
            keys.report(f"has evicted where it ends; it was found again at page {last}")

    def _existing(self, pages: range) -> list[int]:
        found = self._link.get([self._keys.key("p", number) for number in pages])
        return [number for number in pages if self._keys.key("p", number) in found]

    def lose(self, numbers: Iterable[int]) -> None:
        """Count messages as lost, because their records were evicted."""
        for number in numbers:

            def edit(page: Page, slot: int = number % SLOTS) -> bool:
                page.clear(slot)
                return True

            self.retire(self.edit(number // SLOTS, edit))
            if self._link.incr(self._keys.key("lost"), 1) is None:
                self._link.add(self._keys.key("lost"), b"1")
            self._keys.report(f"has evicted message {self._keys.ids.make(number)}, which is lost")


def _block(raw: bytes) -> array[int]:
    return array("q", raw if len(raw) == FAN * 8 else bytes(FAN * 8))


def _is_tombstone(packed: bytes | None) -> bool:
    return packed is not None and Page(packed).is_dead()
