"""Sending to a queue in memcached, without a lock.

    incr head ──► number      write the record ──► write the mark, if any ──► compare-and-swap the slot, EMPTY to QUEUED

The last step is the send. A sender that dies before it has sent nothing: its slot stays empty, and other processes skip it and
finally void it. A sender that is only slow and finds its slot void takes another number. A sender that finds the mark of a
message that is not there yet finishes that send, since the record is written before the mark. So of two senders that add the
same member, exactly one has added it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from penstock.errors import QueueNotFound, StoreFull
from penstock.message import FOREVER, Entry, Sent, Settings
from penstock.policy import SECOND, same_settings
from penstock.stores.memcached.catalogue import Home
from penstock.stores.memcached.formats import EMPTY, GONE, SETTLED, SLOTS, STATE, VOID, Page, Record
from penstock.stores.memcached.link import Found
from penstock.stores.memcached.pages import CachedPages
from penstock.stores.memcached.records import MARK, id_of, mark_key

CHUNK = 1024
"""How many numbers are taken at once."""
SLOW = 0.04
"""Seconds after which a waiting receiver stops looking for a message whose number it saw given out."""
MONTH = 30 * 86400
SLACK = 3600
"""Seconds for which memcached keeps a mark beyond its end. We decide whether a mark counts; the expiry only frees memory."""


class CachedSending(CachedPages):
    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        with self.batch():
            home = self._homes.get(queue) or self._home(queue)[0]
            sent: list[Sent] = []
            for start in range(0, len(entries), CHUNK):
                chunk = entries[start : start + CHUNK]
                # Once part of a batch is in, the rest follows, even if the settings have changed.
                answers = self._insert(home, chunk, now, None if sent else settings)
                if answers is None:
                    return None
                sent += answers
            return sent

    def _insert(self, home: Home, entries: Sequence[Entry], now: int, settings: Settings | None) -> list[Sent] | None:
        answers: dict[int, Sent] = {}
        firsts: dict[bytes, int] = {}
        left = []
        for place, entry in enumerate(entries):
            if entry.mark is None or firsts.setdefault(entry.mark, place) == place:
                left.append(place)
        while left:
            home = self._homes.get(home.name) or self._home(home.name)[0]
            marks = {place: mark for place in left if (mark := entries[place].mark) is not None}
            tokens: dict[int, bytes | None] = {}
            if marks:
                fresh, found = self._home(home.name, partial(_mark_keys, list(marks.values())))
                if settings is not None and not same_settings(fresh.settings, settings):
                    return None
                home = fresh
                for place, mark in marks.items():
                    value, tokens[place] = found.get(mark_key(home, mark), (b"", None))
                    first = self._in_force(home, value, now)
                    if first:
                        answers[place] = Sent(self._id(home, first), duplicate=True)
                left = [place for place in left if place not in answers]
            committed = self._put(home, {place: entries[place] for place in left}, tokens, now, settings)
            if committed is None:
                return None
            answers |= {place: Sent(home.ids.make(number)) for place, number in committed.items()}
            left = [place for place in left if place not in answers]
            if committed:
                settings = None
        return [
            answers[place] if place in answers else Sent(answers[firsts[entry.mark or b""]].id, duplicate=True)
            for place, entry in enumerate(entries)
        ]

    def _put(
        self, home: Home, entries: Mapping[int, Entry], tokens: Mapping[int, bytes | None], now: int, settings: Settings | None
    ) -> dict[int, int] | None:
        """Try once to send. Returns the numbers of those that are sent; others took the numbers, or marks, of the rest."""
        if not entries:
            return {}
        begun = time.monotonic()
        head = home.link.incr(home.key("head"), len(entries))
        if head is None:
            if self._home(home.name)[0] is home:
                self._recover(home)
            return {}
        numbers = dict(zip(entries, range(head - len(entries) + 1, head + 1), strict=True))
        records = {numbers[place]: Record.of(entry) for place, entry in entries.items()}
        parted = self._store_records(home, records)
        for place, token in tokens.items():
            entry = entries.get(place)
            if entry is not None and not self._mark(home, entry, numbers[place], token, now):
                number = numbers.pop(place)
                self._discard(home, {number: records.pop(number)._replace(mark=None)})
        try:
            sent = self.commit(home, records, parted, settings)
        except StoreFull:
            self._discard(home, records, dead=True)
            raise
        if sent is None:
            self._discard(home, records, dead=True)
            return None
        if time.monotonic() - begun > SLOW:
            home.link.nudge(home.key("stir"))  # waiting receivers saw the head change, and looked too early
        if len(sent) < len(records):
            self._discard(home, {number: record for number, record in records.items() if number not in sent}, dead=True)
        return {place: number for place, number in numbers.items() if number in sent}

    def commit(self, home: Home, records: Mapping[int, Record], parted: set[int], settings: Settings | None) -> set[int] | None:
        """Fill the slots. Returns which of them are filled; None, and nothing is, if the settings have changed."""
        pages: dict[int, list[int]] = {}
        for number in records:
            pages.setdefault(number // SLOTS, []).append(number)
        sent: set[int] = set()
        for at, numbers in pages.items():
            done = self._fill(home, at, {number: records[number] for number in numbers}, parted, settings)
            if done is None:
                return None
            sent |= done
            settings = None
        home.there += len(sent)
        return sent

    def _fill(
        self, home: Home, at: int, records: Mapping[int, Record], parted: set[int], settings: Settings | None
    ) -> set[int] | None:
        while True:
            # Read the tail after the page. The tail passes only tombstones. So if it has not passed this page by then, and the
            # page has an empty slot, others look there as long as the page does not change.
            now, found = self._home(home.name, lambda home: [home.key("p", at), home.key("tail")])
            if settings is not None and (now.born != home.born or not same_settings(now.settings, settings)):
                return None
            if now.born != home.born:
                raise QueueNotFound(home.name)
            if self._is_past(home, at, found):
                return set()
            page, token, past = self._page_to_fill(home, at, found)
            if past:
                return set()
            sent = {number for number in records if page.states[number % SLOTS] & STATE not in (EMPTY, VOID)}
            fill = [number for number in records if page.states[number % SLOTS] == EMPTY]
            for number in fill:
                page.fill(number % SLOTS, records[number], parted=number in parted)
            if not fill:
                return sent
            if home.link.cas(home.key("p", at), page.pack(), token):
                if token is None and self._is_past(home, at, home.link.gets([home.key("tail")])):
                    home.link.forget([home.key("p", at)])  # nobody will look here any more
                    return set()
                if page.is_sealed():
                    self._raise(home, at)
                return sent | set(fill)

    def _page_to_fill(self, home: Home, at: int, found: Found) -> tuple[Page, bytes | None, bool]:
        value = found.get(home.key("p", at))
        if value is not None:
            home.seen = max(home.seen, at)
            return Page(value[0]), value[1], False
        if at <= home.seen:  # it existed: evicted, or passed by the tail
            page, token = self._rebuild(home, at)
            return page, token, token is None
        return Page.new(at), None, False

    # marks

    def _id(self, home: Home, number: int) -> str:
        """A message that was moved here has kept its id."""
        record = self._records(home, [number]).get(number)
        return home.ids.make(number) if record is None else id_of(home, number, record)

    def _mark(self, home: Home, entry: Entry, number: int, token: bytes | None, now: int) -> bool:
        assert entry.mark is not None
        key, value = mark_key(home, entry.mark), MARK.pack(number, entry.mark_until)
        seconds = 0 if entry.mark_until == FOREVER else (entry.mark_until - now) // SECOND + SLACK
        if seconds > MONTH:
            seconds += int(time.time())  # memcached reads more than a month as a date
        if home.link.cas(key, value, token, seconds):
            return True
        return home.link.get([key]).get(key) == value  # an answer may have been lost

    def _in_force(self, home: Home, value: bytes, now: int) -> int:
        """The number of the message of which one with this mark is a duplicate, or 0."""
        if len(value) != MARK.size:
            return 0
        number, until = MARK.unpack(value)
        if until <= now:
            return 0
        slot, at = number % SLOTS, number // SLOTS
        page, token = self._read(home, [at])[at]
        if page.states[slot] == EMPTY:
            page = self._help(home, number)
        status = page.states[slot] & STATE
        if until == FOREVER:
            return number if page.is_live(slot) else 0
        if token is None and at < home.tail:  # a deleted message has no record; this one is left by a late sender
            return 0 if self._records(home, [number]) else number
        return number if page.is_live(slot) or status in SETTLED or status == GONE else 0

    def _help(self, home: Home, number: int) -> Page:
        """Finish the send of a slow or dead process. Without a record there is nothing to send."""
        record = self._records(home, [number]).get(number)
        slot = number % SLOTS

        def edit(page: Page) -> bool:
            if page.states[slot] != EMPTY:
                return False
            if record is None:
                page.clear(slot, VOID)
            else:
                page.fill(slot, record, parted=True)
            return True

        return self._edit(home, number // SLOTS, edit)


def _mark_keys(marks: Sequence[bytes], home: Home) -> list[str]:
    return [mark_key(home, mark) for mark in marks]
