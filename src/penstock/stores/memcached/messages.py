"""Operations on messages in memcached: claim, extend, delete, move."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from penstock.errors import StoreError
from penstock.message import FOREVER, Death, Held, Message, Moved, Receipt, Settings, Settlement, State
from penstock.policy import SECOND, readmit, same_settings
from penstock.stores.encoding import Head, pack_head, unpack_head
from penstock.stores.memcached.catalogue import Home
from penstock.stores.memcached.formats import EMPTY, MOVING, NEVER, SETTLED, SLOTS, STATE, VOID, Page, Record, moved_mark
from penstock.stores.memcached.pages import Survey
from penstock.stores.memcached.reader_records import ReaderRecords
from penstock.stores.memcached.records import ARRIVED, MARK, MOVED_SECONDS, alias_key, id_of, mark_key
from penstock.stores.memcached.sending import CachedSending
from penstock.stores.ports import Claiming

BRIEFLY = 60 * SECOND
"""How long a message that is about to be settled or moved stays hidden if the process dies before that."""
Act = Callable[[int, dict[int, tuple[int, int | None]]], list[int]]
"""Takes a page and, by slot, the number and delivery of some messages. Returns the slots that it changed."""


class CachedMessages(CachedSending):
    # claiming

    def claim(self, queue: str, claiming: Claiming) -> list[Message] | None:
        limit, now, until, holder = claiming.limit, claiming.at, claiming.until, claiming.holder
        with self.batch():
            home, found = self._home(queue, self._claim_keys)
            if claiming.known is not None and not same_settings(home.settings, claiming.known):
                return None
            hidden_until = now + BRIEFLY if until is None else until
            messages: list[Message] = []
            survey = self._survey(home, found)
            pages = self._candidates(home, survey, now)
            while len(messages) < limit:
                chunk = list(islice(pages, 1 + (limit - len(messages)) // SLOTS))
                if not chunk:
                    break
                if len(chunk) == 1 and chunk[0] == home.page and home.key("p", home.page) in found:
                    read = {home.page: self._page(home, home.page, found)}
                else:
                    read = self._read(home, chunk)
                for at in chunk:
                    if len(messages) < limit:
                        messages += self._take(home, survey, at, read[at], limit - len(messages), now, hidden_until, holder)
            for message in messages if until is None else ():
                message.visible_at = FOREVER
            return messages

    def _take(
        self,
        home: Home,
        survey: Survey,
        at: int,
        read: tuple[Page, bytes | None],
        limit: int,
        now: int,
        until: int,
        holder: str | None,
    ) -> list[Message]:
        page, token = read
        while True:
            slots = page.ready(now)[:limit]
            if not slots:
                if self._void(home, survey, at, page):
                    self._raise(home, at)
                return []
            if self._resume_page(home, at, page, slots, now):
                page, token = self._read(home, [at])[at]
                continue
            lapsed = [page.state(slot) == State.CONSUMED for slot in slots]
            for slot in slots:
                page.claim(slot, now, until, holder)
            if self._write(home, at, page, token):
                break
            page, token = self._read(home, [at])[at]
        home.page = at
        found = self._messages(home, at, page, slots)
        for slot, was_lapsed in zip(slots, lapsed, strict=True):
            if slot in found:
                found[slot].lapsed = was_lapsed
        return list(found.values())

    def _messages(self, home: Home, at: int, page: Page, slots: Sequence[int]) -> dict[int, Message]:
        """The messages of a page. Those whose records were evicted are counted as lost."""
        numbers = {at * SLOTS + slot: slot for slot in slots}
        records = self._records(home, numbers)
        if len(records) < len(numbers):
            # Another process may have settled them since; only what the page still has is lost.
            current = self._read(home, [at])[at][0]
            self._lose(home, [n for n, slot in numbers.items() if n not in records and current.is_live(slot)])
        return {
            slot: page.message(slot, id_of(home, number, records[number]), number, home.name, records[number])
            for number, slot in numbers.items()
            if number in records
        }

    # settling

    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        with self.batch():
            home = self._home(queue)[0]
            return self._extend(home, receipts, until, release=release)

    def _extend(self, home: Home, receipts: Sequence[Held], until: int, *, release: bool) -> list[bool]:
        state = State.QUEUED if release else State.CONSUMED
        lowered: set[int] = set()

        def change(at: int, page: Page, slot: int) -> bool:
            if page.state(slot) != State.CONSUMED:
                return False
            if until < page.visible[slot]:
                lowered.add(at)
            page.become(slot, state, until)
            return True

        answers = self._change_held(home, receipts, change)
        if lowered:
            self._lower(home, lowered)
        return answers

    def _change_held(self, home: Home, receipts: Sequence[Held], change: Callable[[int, Page, int], bool]) -> list[bool]:
        """Change the messages that the receipts match, page by page."""

        def change_page(at: int, held: dict[int, tuple[int, int | None]]) -> list[int]:
            done: list[int] = []

            def edit(page: Page) -> bool:
                done.clear()
                for place, (number, delivery) in held.items():
                    slot = number % SLOTS
                    if page.is_live(slot) and delivery in (None, page.delivery[slot]) and change(at, page, slot):
                        done.append(place)
                return bool(done)

            self._edit(home, at, edit)
            return done

        return self._by_page(home, receipts, change_page)

    def _by_page(self, home: Home, receipts: Sequence[Held], act: Act) -> list[bool]:
        """Act on the messages of each page, and then on those that were moved here, whose ids belong to other numbers."""
        answers = [False] * len(receipts)
        numbers = {place: home.ids.number(receipt.id) for place, receipt in enumerate(receipts)}
        for _ in range(2):
            pages: dict[int, dict[int, tuple[int, int | None]]] = {}
            for place, number in numbers.items():
                if number:
                    pages.setdefault(number // SLOTS, {})[place] = number, receipts[place].delivery
            for at, held in pages.items():
                for place in act(at, held):
                    answers[place] = True
            keys = {place: alias_key(home, receipts[place].id) for place, done in enumerate(answers) if not done}
            if not keys:
                break
            aliases = home.link.get(keys.values())
            numbers = {place: int(aliases[key]) for place, key in keys.items() if key in aliases}
        return answers

    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        with self.batch():
            known = self._homes.get(queue)
            first = known and receipts and (known.ids.number(receipts[0].id) or 0) // SLOTS
            home, found = self._home(queue, lambda home: [home.key("p", first or 0)])
            if settings is not None and not same_settings(home.settings, settings):
                return None
            return self._delete(home, receipts, settlement, found if known is home else {})

    def _delete(
        self,
        home: Home,
        receipts: Sequence[Held],
        settlement: Settlement,
        found: dict[str, tuple[bytes, bytes]] | None = None,
        *,
        whole: bool = False,
    ) -> list[bool]:
        """``whole``: skip damaged messages."""

        def act(at: int, held: dict[int, tuple[int, int | None]]) -> list[int]:
            return self._delete_from(home, at, held, settlement, found or {}, whole)

        return self._by_page(home, receipts, act)

    def _delete_from(
        self,
        home: Home,
        at: int,
        held: dict[int, tuple[int, int | None]],
        settlement: Settlement,
        found: dict[str, tuple[bytes, bytes]],
        whole: bool,
    ) -> list[int]:
        unsure: list[int] = []
        while True:
            page, token = self._page(home, at, found) if home.key("p", at) in found else self._read(home, [at])[at]
            found = {}
            done: dict[int, int] = {}
            for place, (number, delivery) in held.items():
                slot = number % SLOTS
                if whole and page.state(slot) == State.DAMAGED:
                    continue
                if number not in done.values() and page.is_live(slot) and delivery in (None, page.delivery[slot]):
                    done[place] = number
            if not done:
                return unsure if all(not page.is_live(held[place][0] % SLOTS) for place in unsure) else []
            before = [(number, page.states[number % SLOTS]) for number in done.values()]
            if settlement.keep_until is not None:
                notes = {home.key("h", number): _note(settlement, page.visible[number % SLOTS]) for number in done.values()}
                home.link.put(notes)
            for number in done.values():
                if settlement.keep_until is None:
                    page.clear(number % SLOTS)
                else:
                    page.become(number % SLOTS, settlement.state, NEVER)
            written = self._write(home, at, page, token)
            if written:
                self._left(home, page, before, keep=settlement.keep_until is not None)
                return list(done)
            unsure = list(done) if written is None else []

    def amend(self, queue: str, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self.batch():
            home = self._home(queue)[0]
            return self._by_page(home, receipts, lambda at, held: self._amend(home, at, held, state, reason))

    def _amend(
        self, home: Home, at: int, held: dict[int, tuple[int, int | None]], state: State, reason: str | None
    ) -> list[int]:
        done: dict[int, str] = {}

        def edit(page: Page) -> bool:
            done.clear()
            for place, (number, delivery) in held.items():
                slot = number % SLOTS
                if page.state(slot) in SETTLED and delivery in (None, page.delivery[slot]):
                    page.become(slot, state, NEVER)
                    done[place] = home.key("h", number)
            return bool(done)

        self._edit(home, at, edit)
        notes = {key: json.loads(note) for key, note in home.link.get(done.values()).items()}
        home.link.put({key: json.dumps([*note[:2], reason, *note[3:]]).encode() for key, note in notes.items()})
        return list(done)

    def _left(self, home: Home, page: Page, slots: Sequence[tuple[int, int]], *, keep: bool) -> None:
        """Clean up after messages have left their page, for good or into the history."""
        if not keep:
            self._discard_slots(home, slots)
            self._retire(home, page)
            return
        home.there -= len(slots)
        marked = [number for number, status in slots if status & ~STATE]
        for number, record in self._records(home, marked).items():
            if record.is_marked:
                self._unmark(home, number, record)

    def set_aside(self, queue: str, receipts: Sequence[Held]) -> list[bool]:
        with self.batch():

            def change(_: int, page: Page, slot: int) -> bool:
                page.become(slot, State.DAMAGED, FOREVER)
                return True

            return self._change_held(self._home(queue)[0], receipts, change)

    # moving

    def move(
        self,
        queue: str,
        receipts: Sequence[Held],
        target: str,
        now: int,
        expires_at: int,
        deaths: Sequence[Death | None],
    ) -> list[Moved]:
        with self.batch():
            home, there = self._home(queue)[0], self._home(target)[0]
            return [
                self._move(home, there, receipt, now, expires_at, death)
                for receipt, death in zip(receipts, deaths, strict=True)
            ]

    def _move(self, home: Home, there: Home, receipt: Held, now: int, expires_at: int, death: Death | None) -> Moved:
        """Hide it, insert it there, remove it here. If the mover is interrupted or dies in between, `_resume` finishes."""
        seen: list[tuple[Page, int, int]] = []
        before: list[tuple[State, int]] = []

        def hide(at: int, page: Page, slot: int) -> bool:
            seen[:] = [(page, slot, at * SLOTS + slot)]
            if page.states[slot] & MOVING:
                return False
            home.link.put({home.key("v", at * SLOTS + slot): there.name.encode()}, MOVED_SECONDS)
            before[:] = [(State(page.state(slot)), page.visible[slot])]
            page.become(slot, State.CONSUMED, now + BRIEFLY)
            page.states[slot] |= MOVING
            page.delivery[slot] += 1
            return True

        if not self._change_held(home, [receipt], hide)[0]:
            if not seen or not seen[0][0].states[seen[0][1]] & MOVING:
                return Moved.STALE
            # A redrive has found a move that an earlier one left unfinished.
            done, left = self._resume(home, seen[0][2], now)
            return done if left is None else self._move(home, there, left, now, expires_at, death)
        page, slot, number = seen[0]
        record = self._records(home, [number]).get(number)
        if record is None:
            self._lose(home, [number])
            return Moved.STALE
        id = id_of(home, number, record)
        head = unpack_head(record.head)
        message = page.message(slot, id, number, home.name, record)
        new = readmit(message, record.own_mark, death, home.settings, there.settings, now)
        moved = record._replace(
            head=pack_head(Head(head.content_type, head.attributes, head.visibility, death)),
            visible_at=now,
            moved_at=now,
            expires_at=expires_at,
            deadline_at=new.deadline_at,
            received_at=page.received[slot] or None,
            first_received_at=page.first[slot] or None,
            delivery=page.delivery[slot] - 1,
            mark=moved_mark(id, home.born, number, new.mark, lasts=new.mark_until == FOREVER),
            mark_until=0,
        )
        hidden = Receipt(home.name, receipt.id, page.delivery[slot])
        arrived = self._arrive(there, moved, page.delivery[slot])
        if arrived is not Moved.DONE:

            def show(_: int, page: Page, slot: int) -> bool:
                page.become(slot, *before[0])
                page.delivery[slot] -= 1
                return True

            if self._change_held(home, [hidden], show)[0]:
                self._lower(home, [number // SLOTS])
            return arrived
        return Moved.DONE if self._delete(home, [hidden], Settlement(State.PROCESSED, now))[0] else Moved.STALE

    def _resume_page(self, home: Home, at: int, page: Page, slots: Sequence[int], now: int) -> bool:
        moving = [slot for slot in slots if page.states[slot] & MOVING]
        for slot in moving:
            with suppress(StoreError):  # the other queue's server may be down, or full: retry in a minute
                self._resume(home, at * SLOTS + slot, now)
        return bool(moving)

    def _resume(self, home: Home, number: int, now: int) -> tuple[Moved, Receipt | None]:
        """Finish a move whose mover did not return in time. If the message has not arrived, undo it and return its receipt."""
        at, slot = divmod(number, SLOTS)
        mine: list[int] = []

        def take(page: Page) -> bool:
            mine.clear()
            if page.states[slot] & MOVING and page.visible[slot] <= now:
                page.visible[slot] = now + BRIEFLY
                page.delivery[slot] += 1
                mine.append(page.delivery[slot])
            return bool(mine)

        def show(_: int, page: Page, slot: int) -> bool:
            page.become(slot, State.CONSUMED, now)
            return True

        self._edit(home, at, take)
        record = self._records(home, [number]).get(number) if mine else None
        if record is None:
            if mine:
                self._lose(home, [number])
            return Moved.STALE, None
        hidden = Receipt(home.name, home.ids.make(number), mine[0])
        copy = record._replace(mark=moved_mark(id_of(home, number, record), home.born, number, None, lasts=False))
        target = home.link.get([home.key("v", number)]).get(home.key("v", number), b"").decode()
        there = self._known(target, self._look(target, None, None)) if target else None
        if there is not None and self._arrive(there, copy, mine[0], put=False) is Moved.DONE:
            self._delete(home, [hidden], Settlement(State.PROCESSED, now))
            return Moved.DONE, None
        self._change_held(home, [hidden], show)
        self._lower(home, [at])
        return Moved.STALE, hidden

    def _arrive(self, there: Home, record: Record, attempt: int, *, put: bool = True) -> Moved:
        """Insert a moved message into its new queue, unless an earlier attempt has done so. DUPLICATE: its mark would count
        there, and another message has it. STALE: it is not there, and a later attempt has taken over from this one, which must
        not insert it any more. Without ``put``: only look, and take over from earlier attempts."""
        key = mark_key(there, record.note)
        while True:
            value, token = there.link.gets([key]).get(key, (b"", None))
            number, latest = MARK.unpack(value) if len(value) == MARK.size else (0, 0)
            if latest == ARRIVED:
                return Moved.DONE
            if latest > attempt:
                return Moved.STALE
            if number:
                if self._read(there, [number // SLOTS])[number // SLOTS][0].states[number % SLOTS] == EMPTY:
                    left = self._records(there, [number]).get(number)
                    if left is not None and not self._take_mark(there, number, left):
                        if not self._give_up(there, number, left):
                            return Moved.DONE
                        if put:
                            there.link.forget([key])
                            return Moved.DUPLICATE
                there.link.put({alias_key(there, record.moved_id or ""): b"%d" % number})
                page = self._help(there, number)
                if page.state(number % SLOTS) != VOID:
                    return Moved.DONE
            if not put:
                if there.link.cas(key, MARK.pack(0, attempt), token, MOVED_SECONDS):
                    return Moved.STALE
                continue
            head = there.link.incr(there.key("head"), 1)
            if head is None:
                self._recover(there)
                continue
            # Write the note before the record: a record without a note was left by a process that died.
            if there.link.cas(key, MARK.pack(head, attempt), token, MOVED_SECONDS):
                parted = self._store_records(there, {head: record})
                if not self._take_mark(there, head, record):
                    if not self._give_up(there, head, record):
                        return Moved.DONE
                    there.link.forget([key])
                    return Moved.DUPLICATE
                there.link.put({alias_key(there, record.moved_id or ""): b"%d" % head})
                if self.commit(there, {head: record}, parted, None):
                    return Moved.DONE
                self._discard(there, {head: record})

    def _give_up(self, there: Home, number: int, record: Record) -> bool:
        """Remove a message that must not arrive, as an equal one is there. Returns False if another mover has let it arrive."""
        slot = number % SLOTS

        def edit(page: Page) -> bool:
            empty = page.states[slot] == EMPTY
            if empty:
                page.clear(slot, VOID)
            return empty

        if self._edit(there, number // SLOTS, edit).state(slot) != VOID:
            return False
        self._discard(there, {number: record})
        return True

    def _take_mark(self, there: Home, number: int, record: Record) -> bool:
        """Put the mark of an arriving message in force. Returns False if another message there has it."""
        if not record.is_marked:
            return True
        key, wanted = mark_key(there, record.own_mark or b""), MARK.pack(number, FOREVER)
        while True:
            value, token = there.link.gets([key]).get(key, (b"", None))
            if value == wanted:
                return True
            if len(value) == MARK.size and MARK.unpack(value)[1] == FOREVER and self._in_force(there, value, 0):
                return False
            there.link.cas(key, wanted, token)

    # removing

    def purge(self, queue: str, limit: int) -> int:
        with self.batch():
            home, found = self._home(queue, self._claim_keys)
            survey = self._survey(home, found)
            held = ReaderRecords(home).held_numbers()
            purged = 0
            for at in range(survey.tail, survey.last + 1):
                if purged < limit:
                    purged += self._purge_page(home, at, limit - purged, held)
            return purged

    def _purge_page(self, home: Home, at: int, limit: int, held: dict[int, int]) -> int:
        before: list[tuple[int, int]] = []

        def edit(page: Page) -> bool:
            before.clear()
            for slot in page.live():
                number = at * SLOTS + slot
                if held.get(number) != page.delivery[slot] and len(before) < limit:
                    before.append((number, page.states[slot]))
                    page.clear(slot)
            return bool(before)

        page = self._edit(home, at, edit)
        if before:
            self._left(home, page, before, keep=False)
        return len(before)


def _note(settlement: Settlement, visible_at: int) -> bytes:
    return json.dumps([visible_at, settlement.settled_at, settlement.reason, settlement.keep_until]).encode()
