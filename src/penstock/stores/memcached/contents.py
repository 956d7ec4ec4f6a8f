"""What one queue holds in memcached: messages, found by their receipts or their marks, and changed by compare-and-swap."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Sequence
from typing import Any

from penstock.message import FOREVER, Held, Message, Settlement, State
from penstock.stores.memcached.formats import EMPTY, FAILED, GONE, LIVE, NEVER, SETTLED, SLOTS, STATE, VOID, Page, Record
from penstock.stores.memcached.link import Items
from penstock.stores.memcached.pages import Pages
from penstock.stores.memcached.reader_records import ReaderRecords
from penstock.stores.memcached.records import MARK, Keyspace, MessageRecords

WantedSlots = dict[int, tuple[int, int | None]]
"""Messages of one page: for the place of each receipt, the number and the delivery."""
Slots = list[tuple[int, int]]
"""The number and the status of each."""


class Contents:
    """Owns the pages, the records and the named claims of one queue."""

    def __init__(self, keys: Keyspace) -> None:
        self.keys = keys
        self.link = keys.link
        self.records = MessageRecords(keys)
        self.pages = Pages(keys, self.records)
        self.readers = ReaderRecords(keys)

    def message(self, page: Page, number: int, record: Record) -> Message:
        message = page.message(number % SLOTS, self.records.id_of(number, record), number, self.keys.name, record)
        if page.states[number % SLOTS] & FAILED:
            message.failures, message.error = self._failed(number)
        return message

    def _failed(self, number: int) -> tuple[int, str | None]:
        """How often a message's handler has failed, and the last error."""
        key = self.keys.key("e", number)
        found = self.link.get([key]).get(key)
        return tuple(json.loads(found)) if found else (1, None)  # it was evicted

    def messages(self, at: int, page: Page, slots: Sequence[int]) -> dict[int, Message]:
        """The messages of a page, by slot. Those whose records were evicted are counted as lost."""
        numbers = [at * SLOTS + slot for slot in slots]
        records = self.records.load(numbers)
        if len(records) < len(numbers):
            # Another process may have settled them since; only what the page still has is lost.
            current, _ = self.pages.read_one(at)
            self.pages.lose([number for number in numbers if number not in records and current.is_live(number % SLOTS)])
        return {number % SLOTS: self.message(page, number, records[number]) for number in numbers if number in records}

    # by receipt

    def by_page(self, receipts: Sequence[Held], act: Callable[[int, WantedSlots], list[int]]) -> list[bool]:
        """Act on the messages of each page, and then on those that were moved here, whose ids belong to other numbers. ``act``
        returns the places that it changed."""
        answers = [False] * len(receipts)
        numbers = {place: self.keys.ids.number(receipt.id) for place, receipt in enumerate(receipts)}
        for _ in range(2):
            pages: dict[int, WantedSlots] = {}
            for place, number in numbers.items():
                if number:
                    pages.setdefault(number // SLOTS, {})[place] = number, receipts[place].delivery
            for at, wanted in pages.items():
                for place in act(at, wanted):
                    answers[place] = True
            aliases = {place: self.keys.alias(receipts[place].id) for place, done in enumerate(answers) if not done}
            if not aliases:
                break
            found = self.link.get(aliases.values())
            numbers = {place: int(found[alias]) for place, alias in aliases.items() if alias in found}
        return answers

    def change(
        self,
        receipts: Sequence[Held],
        change: Callable[[int, Page, int], bool],
        *,
        states: Container[int] = LIVE,
        found: Items | None = None,
        before: Callable[[], object] = lambda: None,
        after: Callable[[Page, Slots], object] = lambda _page, _slots: None,
    ) -> list[bool]:
        """Change the messages in these states that the receipts match, page by page. ``found`` may have the first page.

        ``before`` is called before each attempt to write a page, ``after`` with the slots that were changed as they were."""
        unread = dict(found or {})

        def act(at: int, wanted: WantedSlots) -> list[int]:
            unsure: list[int] = []
            key = self.keys.key("p", at)
            while True:
                page, token = self.pages.page(at, {key: unread.pop(key)}) if key in unread else self.pages.read_one(at)
                done: dict[int, tuple[int, int]] = {}
                for place, (number, delivery) in wanted.items():
                    slot = number % SLOTS
                    status = page.states[slot]
                    if status & STATE in states and delivery in (None, page.delivery[slot]) and change(at, page, slot):
                        done[place] = number, status
                if not done:  # the answer to our own deletion may have been lost
                    return [] if any(page.is_live(wanted[place][0] % SLOTS) for place in unsure) else unsure
                before()
                written = self.pages.write(at, page, token)
                if written:
                    after(page, list(done.values()))
                    return list(done)
                deleted = [place for place, (number, _) in done.items() if not page.is_live(number % SLOTS)]
                unsure = deleted if written is None else []

        return self.by_page(receipts, act)

    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False, error: str | None = None) -> list[bool]:
        state = State.QUEUED if release else State.CONSUMED
        lowered: set[int] = set()
        known: dict[int, int] = {}
        failed: dict[str, bytes] = {}

        def change(at: int, page: Page, slot: int) -> bool:
            if page.state(slot) != State.CONSUMED:
                return False
            if until < page.visible[slot]:
                lowered.add(at)
            if error is not None:
                number = at * SLOTS + slot
                if number not in known:  # a page that is written again must not count twice
                    known[number] = self._failed(number)[0] if page.states[slot] & FAILED else 0
                failed[self.keys.key("e", number)] = json.dumps([known[number] + 1, error]).encode()
                page.states[slot] |= FAILED
            page.become(slot, state, until)
            return True

        def write_failed() -> None:
            self.link.put(failed)
            failed.clear()

        answers = self.change(receipts, change, before=write_failed)
        if lowered:
            self.pages.lower_bounds(lowered)
        return answers

    def delete(
        self, receipts: Sequence[Held], settlement: Settlement, found: Items | None = None, *, skip_damaged: bool = False
    ) -> list[bool]:
        keep = settlement.keep_until is not None
        notes: dict[str, bytes] = {}

        def change(at: int, page: Page, slot: int) -> bool:
            if skip_damaged and page.state(slot) == State.DAMAGED:
                return False
            if keep:
                notes[self.keys.key("h", at * SLOTS + slot)] = _note(settlement, page.visible[slot])
                page.become(slot, settlement.state, NEVER)
            else:
                page.clear(slot)
            return True

        def write_notes() -> None:
            self.link.put(notes)
            notes.clear()

        def clean_up(page: Page, slots: Slots) -> None:
            self.keys.count -= len(slots)
            if not keep:
                self.records.drop(slots)
                self.pages.retire(page)
                return
            for number, record in self.records.load([number for number, status in slots if status & ~STATE]).items():
                if record.is_marked:
                    self.records.unmark(number, record)

        return self.change(receipts, change, found=found, before=write_notes, after=clean_up)

    def clear(self, at: int, choose: Callable[[Page], Sequence[int]]) -> list[int]:
        """Remove the messages in the slots of a page that ``choose`` returns. Returns their numbers."""
        before: list[tuple[int, int]] = []

        def edit(page: Page) -> bool:
            before[:] = [(at * SLOTS + slot, page.states[slot]) for slot in choose(page)]
            for number, _ in before:
                page.clear(number % SLOTS)
            return bool(before)

        page = self.pages.edit(at, edit)
        if before:
            self.records.drop(before)
            self.pages.retire(page)
        return [number for number, _ in before]

    # the history: messages stay in their slots, and a note says how each was settled

    def notes(self, at: int, page: Page) -> dict[int, list[Any]]:
        """By number: visible_at, settled_at, reason, keep_until."""
        numbers = [at * SLOTS + slot for slot in range(SLOTS) if page.state(slot) in SETTLED]
        keys = {self.keys.key("h", number): number for number in numbers}
        return {keys[key]: json.loads(note) for key, note in self.link.get(keys).items()}

    def clear_old(self, at: int, page: Page, now: int) -> bool:
        """Remove the messages of a page whose history is no longer kept. Returns whether there were any."""
        kept = {number for number, note in self.notes(at, page).items() if note[3] > now}
        old = [slot for slot in range(SLOTS) if page.state(slot) in SETTLED and at * SLOTS + slot not in kept]
        if old:
            gone = self.clear(at, lambda page: [slot for slot in old if page.state(slot) in SETTLED])
            self.link.forget([self.keys.key("h", number) for number in gone])
        return bool(old)

    def amend(self, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        def change(_: int, page: Page, slot: int) -> bool:
            page.become(slot, state, NEVER)
            return True

        def write_notes(_: Page, slots: Slots) -> None:
            found = self.link.get([self.keys.key("h", number) for number, _ in slots])
            notes = {key: json.loads(note) for key, note in found.items()}
            self.link.put({key: json.dumps([*note[:2], reason, *note[3:]]).encode() for key, note in notes.items()})

        return self.change(receipts, change, states=SETTLED, after=write_notes)

    # by mark

    def in_force(self, value: bytes, now: int) -> int:
        """The number of the message of which one with this mark is a duplicate, or 0."""
        if len(value) != MARK.size:
            return 0
        number, until = MARK.unpack(value)
        if until <= now:
            return 0
        slot, at = number % SLOTS, number // SLOTS
        page, token = self.pages.read_one(at)
        if page.states[slot] == EMPTY:
            page = self.finish_send(number, self.records.load_one(number))
        if until == FOREVER:
            return number if page.is_live(slot) else 0
        if token is None and at < self.keys.tail:  # a deleted message has no record; this one is left by a late sender
            return 0 if self.records.load_one(number) else number
        return number if page.is_live(slot) or page.state(slot) in (*SETTLED, GONE) else 0

    def finish_send(self, number: int, record: Record | None) -> Page:
        """Finish the send of a slow or dead process. Without a record there is nothing to send, and the slot is void."""
        slot = number % SLOTS

        def edit(page: Page) -> bool:
            if page.states[slot] != EMPTY:
                return False
            if record is None:
                page.clear(slot, VOID)
            else:
                page.fill(slot, record, parted=True)
            return True

        return self.pages.edit(number // SLOTS, edit)


def _note(settlement: Settlement, visible_at: int) -> bytes:
    return json.dumps([visible_at, settlement.settled_at, settlement.reason, settlement.keep_until]).encode()
