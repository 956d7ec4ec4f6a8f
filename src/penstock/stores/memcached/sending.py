"""Sending to a queue in memcached, without a lock.

    incr head ──► number      write the record ──► write the mark, if any ──► compare-and-swap the slot, EMPTY to QUEUED

The last step is the send. A sender that dies before it has sent nothing: its slot stays empty, and other processes skip it and
finally void it. A sender that is only slow and finds its slot void takes another number. A sender that finds the mark of a
message that is not there yet finishes that send, since the record is written before the mark. So of two senders that add the
same member, exactly one has added it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import QueueNotFound, StoreFull
from penstock.message import FOREVER, SECOND, Entry, Sent, Settings
from penstock.stores.memcached.catalogue import MemcachedCatalogue
from penstock.stores.memcached.contents import Contents
from penstock.stores.memcached.formats import EMPTY, SLOTS, STATE, VOID, Record
from penstock.stores.memcached.records import MARK

CHUNK = 1024
"""How many numbers are taken at once."""
SLOW = 0.04
"""Seconds after which a waiting receiver stops looking for a message whose number it saw given out."""
MONTH = 30 * 86400
SLACK = 3600
"""Seconds for which memcached keeps a mark beyond its end. We decide whether a mark counts; the expiry only frees memory."""


class SettingsChanged(Exception):
    """The settings under which messages were admitted are no longer the queue's."""


class Sender:
    """One call that sends to a queue."""

    def __init__(self, catalogue: MemcachedCatalogue, queue: str, settings: Settings | None = None) -> None:
        self._catalogue = catalogue
        self._queue = queue
        self._settings = settings
        """None once a part of the messages is in: then the rest follows, even if the settings have changed."""

    def insert(self, entries: Sequence[Entry], now: int) -> list[Sent] | None:
        sent: list[Sent] = []
        try:
            for start in range(0, len(entries), CHUNK):
                sent += self._insert(list(entries[start : start + CHUNK]), now)
        except SettingsChanged:
            return None
        return sent

    def _insert(self, entries: Sequence[Entry], now: int) -> list[Sent]:
        answers: dict[int, Sent] = {}
        firsts: dict[bytes, int] = {}
        left = [
            place for place, entry in enumerate(entries) if entry.mark is None or firsts.setdefault(entry.mark, place) == place
        ]
        while left:
            marks = [(place, mark) for place in left if (mark := entries[place].mark) is not None]
            tokens: dict[int, bytes | None] = {}
            if marks:
                contents, tokens = self._find_duplicates(marks, answers, now)
            else:
                contents = self._catalogue.recall(self._queue)
            wanted = {place: entries[place] for place in left if place not in answers}
            sent = self._put(contents, wanted, tokens, now) if wanted else {}
            answers |= {place: Sent(contents.keys.ids.make(number)) for place, number in sent.items()}
            left = [place for place in left if place not in answers]
        return [
            answers[place] if place in answers else Sent(answers[firsts[entry.mark or b""]].id, duplicate=True)
            for place, entry in enumerate(entries)
        ]

    def _find_duplicates(
        self, marks: Sequence[tuple[int, bytes]], answers: dict[int, Sent], now: int
    ) -> tuple[Contents, dict[int, bytes | None]]:
        """Answer those whose mark is in force. Returns the tokens for writing the marks of the others."""
        contents, found = self._catalogue.find(self._queue, lambda keys: [keys.mark(mark) for _, mark in marks])
        self._check(contents)
        tokens: dict[int, bytes | None] = {}
        for place, mark in marks:
            value, tokens[place] = found.get(contents.keys.mark(mark), (b"", None))
            first = contents.in_force(value, now)
            if first:
                answers[place] = Sent(contents.records.id_of(first, contents.records.load_one(first)), duplicate=True)
        return contents, tokens

    def _check(self, current: Contents) -> None:
        if self._settings is not None and current.keys.settings != self._settings:
            raise SettingsChanged

    def _put(
        self, contents: Contents, entries: Mapping[int, Entry], tokens: Mapping[int, bytes | None], now: int
    ) -> dict[int, int]:
        """Try once to send. Returns the numbers of those that are sent; others took the numbers, or marks, of the rest."""
        keys, written = contents.keys, contents.records
        begun = keys.link.patience.now()
        head = keys.link.incr(keys.key("head"), len(entries))
        if head is None:
            if self._catalogue.find(self._queue)[0] is contents:
                contents.pages.recover()
            return {}
        numbers = dict(zip(entries, range(head - len(entries) + 1, head + 1), strict=True))
        records = {numbers[place]: Record.of(entry) for place, entry in entries.items()}
        parted = written.store(records)
        for place, token in tokens.items():
            if place in entries and not _mark(contents, entries[place], numbers[place], token, now):
                number = numbers.pop(place)
                written.discard({number: records.pop(number)._replace(mark=None)})
        sent: set[int] = set()
        refusal: Exception | None = None
        try:
            self.commit(contents, records, parted, sent)
        except (StoreFull, SettingsChanged) as error:  # after any other error the slots may have been filled
            refusal = error
        written.discard({number: record for number, record in records.items() if number not in sent}, dead=True)
        if refusal is not None:
            raise refusal
        if keys.link.patience.now() - begun > SLOW:
            keys.link.nudge(keys.key("stir"))  # waiting receivers saw the head change, and looked too early
        return {place: number for place, number in numbers.items() if number in sent}

    def commit(self, contents: Contents, records: Mapping[int, Record], parted: set[int], sent: set[int]) -> None:
        """Fill the slots. Adds those that are filled to ``sent``, so that the caller knows them even if this fails."""
        pages: dict[int, dict[int, Record]] = {}
        for number, record in records.items():
            pages.setdefault(number // SLOTS, {})[number] = record
        for at, those in pages.items():
            filled = self._fill(contents, at, those, parted)
            sent |= filled
            contents.keys.count += len(filled)
            if sent:
                self._settings = None

    def _fill(self, contents: Contents, at: int, records: Mapping[int, Record], parted: set[int]) -> set[int]:
        keys, pages = contents.keys, contents.pages
        while True:
            # Read the tail after the page. The tail passes only tombstones. So if it has not passed this page by then, and the
            # page has an empty slot, others look there as long as the page does not change.
            current, found = self._catalogue.find(self._queue, lambda keys: [keys.key("p", at), keys.key("tail")])
            self._check(current)
            if current.keys.salt != keys.salt:
                raise QueueNotFound(self._queue) if self._settings is None else SettingsChanged
            if pages.is_past(at, found):
                return set()
            page, token = pages.page_to_fill(at, found)
            sent = {number for number in records if page.states[number % SLOTS] & STATE not in (EMPTY, VOID)}
            fill = [number for number in records if page.states[number % SLOTS] == EMPTY]
            for number in fill:
                page.fill(number % SLOTS, records[number], parted=number in parted)
            if not fill:
                return sent
            if keys.link.cas(keys.key("p", at), page.pack(), token):
                if token is None and pages.is_past(at):
                    keys.link.forget([keys.key("p", at)])
                    return set()
                if page.is_sealed():
                    pages.raise_bound(at)
                return sent | set(fill)


def _mark(contents: Contents, entry: Entry, number: int, token: bytes | None, now: int) -> bool:
    """Put the mark of a new message in force. Returns False if another process was faster."""
    assert entry.mark is not None
    key, value, link = contents.keys.mark(entry.mark), MARK.pack(number, entry.mark_until), contents.link
    seconds = 0 if entry.mark_until == FOREVER else (entry.mark_until - now) // SECOND + SLACK
    if seconds > MONTH:
        seconds += int(link.patience.date())  # memcached reads more than a month as a date
    if link.cas(key, value, token, seconds):
        return True
    return link.get([key]).get(key) == value  # an answer may have been lost
