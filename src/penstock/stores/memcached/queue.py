"""One queue in memcached, and its history: the verbs of the ports. The steps that they are made of are in `contents`."""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from functools import partial
from itertools import islice

from penstock.errors import StoreError
from penstock.guarded import guarded
from penstock.message import FOREVER, Counts, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.stores.ids import Uuids
from penstock.stores.memcached.catalogue import MemcachedCatalogue
from penstock.stores.memcached.contents import Contents
from penstock.stores.memcached.formats import LIVE, MARKED, NEVER, SETTLED, SLOTS, STATE, Page
from penstock.stores.memcached.moving import BRIEFLY, Mover
from penstock.stores.memcached.pages import Survey
from penstock.stores.memcached.readers import MemcachedReaders
from penstock.stores.memcached.records import MARK, Keyspace
from penstock.stores.memcached.sending import Sender
from penstock.stores.memcached.sweeping import Sweep
from penstock.stores.parts import scan_of, span_of
from penstock.stores.ports import START, History, StoredQueue
from penstock.stores.requests import Claimed, Claiming, Marked, Moving, Swept

AT_ONCE = 8
"""Pages per command when looking for the first message that becomes visible."""


class MemcachedUuids(Uuids):
    def __init__(self, catalogue: MemcachedCatalogue) -> None:
        self._catalogue = catalogue

    def number(self, queue: str, id: str) -> int | None:
        """A message that was moved here has kept its id, and has another number."""
        with self._catalogue.open(queue, lambda keys: [keys.alias(id)]) as (contents, found):
            moved = found.get(contents.keys.alias(id))
            return contents.keys.ids.number(id) if moved is None else int(moved[0])


class MemcachedHistory(History):
    def __init__(self, catalogue: MemcachedCatalogue, queue: str) -> None:
        self._open = partial(catalogue.open, queue)

    def browse(self, limit: int, *, after: tuple[int, int] = START) -> list[Message]:
        with self._open(Keyspace.first_reads) as (contents, found):
            notes = [
                (note[1], number, page, note)
                for at, page in contents.pages.all(contents.pages.survey(found))
                for number, note in contents.notes(at, page).items()
                if (note[1], number) > after
            ]
            messages = []
            for settled_at, number, page, note in heapq.nsmallest(limit, notes, key=lambda note: note[:2]):
                record = contents.records.load_one(number)
                if record is not None:
                    message = contents.message(page, number, record)
                    message.visible_at, message.settled_at, message.reason = note[0], settled_at, note[2]
                    messages.append(message)
            return messages

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        return scan_of(self.browse(sys.maxsize), start, stop, limit)

    def span(self) -> tuple[int, int, int]:
        return span_of(self.browse(sys.maxsize))

    def amend(self, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self._open() as (contents, _):
            return contents.amend(receipts, state, reason)


class MemcachedQueue(StoredQueue):
    def __init__(self, catalogue: MemcachedCatalogue, name: str) -> None:
        self.readers = MemcachedReaders(catalogue, name)
        self.history = MemcachedHistory(catalogue, name)
        self._catalogue = catalogue
        self._open = partial(catalogue.open, name)
        self._name = name

    @guarded
    def _survey(self) -> Generator[tuple[Contents, Survey]]:
        with self._open(Keyspace.first_reads) as (contents, found):
            yield contents, contents.pages.survey(found)

    def insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        with self._catalogue.servers.batch():
            return Sender(self._catalogue, self._name, settings).insert(entries, now)

    # claiming

    def claim(self, claiming: Claiming) -> Claimed | None:
        if claiming.deleting is None:
            return self._claim(claiming)
        deleted = self.delete(*claiming.deleting, claiming.known)
        if deleted is None:
            return None
        try:
            claimed = self._claim(claiming)
        except StoreError:  # the deletion is done; the next claim will report the error
            claimed = None
        return Claimed([] if claimed is None else claimed.messages, deleted)

    def _claim(self, claiming: Claiming) -> Claimed | None:
        now, limit = claiming.at, claiming.limit
        until = now + BRIEFLY if claiming.until is None else claiming.until
        with self._open(Keyspace.first_reads) as (contents, found):
            keys, pages = contents.keys, contents.pages
            if claiming.known is not None and keys.settings != claiming.known:
                return None
            keys.latest = max(keys.latest, now)
            survey = pages.survey(found)
            candidates = survey.candidates(now)
            messages: list[Message] = []
            while len(messages) < limit and (chunk := list(islice(candidates, 1 + (limit - len(messages)) // SLOTS))):
                if chunk == [keys.page] and keys.key("p", keys.page) in found:
                    read = {keys.page: pages.page(keys.page, found)}
                else:
                    read = pages.read(chunk)
                for at in chunk:
                    if len(messages) < limit:
                        rest = claiming._replace(limit=limit - len(messages))
                        messages += self._take(contents, survey, at, read[at], rest, until)
            for message in messages if claiming.until is None else ():
                message.visible_at = FOREVER
            return Claimed(messages)

    def _take(
        self, contents: Contents, survey: Survey, at: int, read: tuple[Page, bytes | None], claiming: Claiming, until: int
    ) -> list[Message]:
        """Claim messages of one page."""
        now = claiming.at
        page, token = read
        while True:
            slots = page.ready(now)[: claiming.limit]
            if not slots:
                if contents.pages.void(survey, at, page):
                    contents.pages.raise_bound(at)
                return []
            if not Mover(self._catalogue, contents).resume(at, page, slots, now):
                lapsed = {slot: page.state(slot) == State.CONSUMED for slot in slots}
                for slot in slots:
                    page.claim(slot, now, until, claiming.holder)
                if contents.pages.write(at, page, token):
                    break
            page, token = contents.pages.read_one(at)
        contents.keys.page = at
        found = contents.messages(at, page, slots)
        for slot, message in found.items():
            message.lapsed = lapsed[slot]
        return list(found.values())

    # settling and moving

    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False, error: str | None = None) -> list[bool]:
        with self._open() as (contents, _):
            return contents.extend(receipts, until, release=release, error=error)

    def delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None) -> list[bool] | None:
        def first_page(keys: Keyspace) -> list[str]:
            return [keys.key("p", (keys.ids.number(receipt.id) or 0) // SLOTS) for receipt in receipts[:1]]

        with self._open(first_page) as (contents, found):
            if settings is not None and contents.keys.settings != settings:
                return None
            return contents.delete(receipts, settlement, found)

    def move(self, receipts: Sequence[Held], moving: Moving) -> list[Moved]:
        with self._open() as (contents, _):
            mover, there = Mover(self._catalogue, contents), self._catalogue.find(moving.target)[0]
            return [mover.move(receipt, there, moving) for receipt in receipts]

    def set_aside(self, receipts: Sequence[Held]) -> list[bool]:
        def change(_: int, page: Page, slot: int) -> bool:
            page.become(slot, State.DAMAGED, FOREVER)
            return True

        with self._open() as (contents, _):
            return contents.change(receipts, change)

    # looking

    def browse(
        self, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        with self._survey() as (contents, survey):
            start = after[1] // SLOTS
            if now is None:
                pages = contents.pages.all(survey, start)
            else:
                contents.keys.latest = max(contents.keys.latest, now)
                pages = ((at, contents.pages.read_one(at)[0]) for at in survey.candidates(now) if at >= start)
            messages: list[Message] = []
            for at, page in pages:
                slots = page.live() if now is None else page.ready(now)
                slots = [slot for slot in slots if state in (None, page.state(slot)) and at * SLOTS + slot > after[1]]
                messages += contents.messages(at, page, slots[: limit - len(messages)]).values()
                if len(messages) == limit:
                    break
            return messages

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        return [message for message in self.browse(limit, after=(START[0], start - 1)) if message.number < stop]

    def span(self) -> tuple[int, int, int]:
        return span_of(self.browse(sys.maxsize))

    def marked(self, mark: bytes | None = None) -> Marked:
        if mark is None:
            with self._survey() as (contents, survey):
                pages = contents.pages.all(survey)
                return Marked(sum(page.states[slot] & MARKED != 0 for _, page in pages for slot in page.live()))
        with self._open(lambda keys: [keys.mark(mark)]) as (contents, found):
            value, _ = found.get(contents.keys.mark(mark), (b"", b""))
            number, until = MARK.unpack(value) if len(value) == MARK.size else (0, 0)
            if not number or not contents.pages.read_one(number // SLOTS)[0].is_live(number % SLOTS):
                return Marked(0)
            return Marked(int(until == FOREVER), contents.records.id_of(number, contents.records.load_one(number)))

    def count(self, now: int) -> Counts:
        with self._survey() as (contents, survey):
            keys = contents.keys
            keys.latest = max(keys.latest, now)
            states: Counter[int] = Counter()
            visible = in_flight = 0
            oldest = None
            for at, page in contents.pages.all(survey):
                states.update(status & STATE for status in page.states)
                live = page.live()
                visible += sum(page.visible[slot] <= now for slot in live)
                in_flight += sum(page.visible[slot] > now and page.state(slot) == State.CONSUMED for slot in live)
                if oldest is None and live:
                    oldest = next(iter(contents.messages(at, page, live[:1]).values()), None)
            messages = keys.count = sum(states[state] for state in LIVE)
            return Counts(
                messages=messages,
                visible=visible,
                in_flight=in_flight,
                delayed=messages - visible - in_flight - states[State.DAMAGED],
                blocked=0,
                damaged=states[State.DAMAGED],
                settled=sum(states[state] for state in SETTLED),
                oldest_at=None if oldest is None else oldest.sent_at,
                lost=int(keys.link.get([keys.key("lost")]).get(keys.key("lost"), b"0")),
            )

    def due(self) -> int | None:
        with self._survey() as (contents, survey):
            candidates = survey.candidates(NEVER - 1)
            first = NEVER
            while first > contents.keys.latest and (chunk := list(islice(candidates, AT_ONCE))):
                unknown = contents.pages.read([at for at in chunk if not survey.bound(at)])
                first = min(first, *(min(unknown[at][0].visible) if at in unknown else survey.bound(at) for at in chunk))
            return None if first >= FOREVER else first

    # clearing

    def purge(self, limit: int) -> int:
        with self._survey() as (contents, survey):
            held = contents.readers.held()
            purged = 0
            for at in range(survey.tail, survey.last + 1):
                if purged < limit:
                    purged += _purge_page(contents, at, limit - purged, held)
            contents.keys.count -= purged
            return purged

    def sweep(self, now: int) -> Swept:
        with self._survey() as (contents, survey):
            cleared = Sweep(self._catalogue, contents, survey, now).sweep()
            return Swept(self._catalogue.clear_dropped() or cleared)


def _purge_page(contents: Contents, at: int, limit: int, held: dict[int, int]) -> int:
    def choose(page: Page) -> list[int]:
        return [slot for slot in page.live() if held.get(at * SLOTS + slot) != page.delivery[slot]][:limit]

    return len(contents.clear(at, choose))
