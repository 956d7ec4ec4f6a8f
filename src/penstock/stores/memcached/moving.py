"""Moving messages between queues in memcached: hide a message, insert it into its new queue, remove it from the old one.

If the mover dies or is interrupted in between, the next process that meets the message finishes the move, or undoes it if the
message has not arrived. A note in the new queue says which attempt is the latest, so that a late mover does nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from penstock.errors import StoreError
from penstock.message import FOREVER, SECOND, Held, Moved, Receipt, Settlement, State
from penstock.stores.encoding import pack_head, unpack_head
from penstock.stores.memcached.catalogue import MemcachedCatalogue
from penstock.stores.memcached.contents import Contents
from penstock.stores.memcached.formats import EMPTY, MOVING, SLOTS, VOID, Page, Record, moved_mark
from penstock.stores.memcached.records import ARRIVED, MARK, MOVED_SECONDS
from penstock.stores.memcached.sending import Sender
from penstock.stores.requests import Moving

BRIEFLY = 60 * SECOND
"""How long a message that is about to be settled or moved stays hidden if the process dies before that."""


class Mover:
    """Moves messages out of one queue."""

    def __init__(self, catalogue: MemcachedCatalogue, contents: Contents) -> None:
        self._catalogue = catalogue
        self._contents = contents
        self._keys = contents.keys

    def move(self, receipt: Held, target: Contents, moving: Moving) -> Moved:
        now = moving.now
        seen: list[tuple[Page, int, int]] = []
        before: list[tuple[State, int]] = []

        def hide(at: int, page: Page, slot: int) -> bool:
            seen[:] = [(page, slot, at * SLOTS + slot)]
            if page.states[slot] & MOVING:
                return False
            self._keys.link.put({self._keys.key("v", at * SLOTS + slot): target.keys.name.encode()}, MOVED_SECONDS)
            before[:] = [(State(page.state(slot)), page.visible[slot])]
            page.become(slot, State.CONSUMED, now + BRIEFLY)
            page.states[slot] |= MOVING
            page.delivery[slot] += 1
            return True

        def show(_: int, page: Page, slot: int) -> bool:
            page.become(slot, *before[0])
            page.delivery[slot] -= 1
            return True

        if not self._contents.change([receipt], hide)[0]:
            if not seen or not seen[0][0].states[seen[0][1]] & MOVING:
                return Moved.STALE
            # A redrive has found a move that an earlier one left unfinished.
            done, left = self._resume(seen[0][2], now)
            return done if left is None else self.move(left, target, moving)
        page, slot, number = seen[0]
        record = self._contents.records.load_one(number)
        if record is None:
            self._contents.pages.lose([number])
            return Moved.STALE
        copy = self._copy(page, number, record, target, moving)
        hidden = Receipt(self._keys.name, receipt.id, page.delivery[slot])
        arrived = Arrival(self._catalogue, target, copy).arrive(page.delivery[slot])
        if arrived is Moved.DONE:
            return Moved.DONE if self._contents.delete([hidden], Settlement(State.PROCESSED, now))[0] else Moved.STALE
        if self._contents.change([hidden], show)[0]:
            self._contents.pages.lower_bounds([number // SLOTS])
        return arrived

    def _copy(self, page: Page, number: int, record: Record, target: Contents, moving: Moving) -> Record:
        """A hidden message as it will be in its new queue."""
        slot, head, keys = number % SLOTS, unpack_head(record.head), self._keys
        message = self._contents.message(page, number, record)
        new = moving.readmit(message, record.own_mark, moving.death, keys.settings, target.keys.settings, moving.now)
        return record._replace(
            head=pack_head(head._replace(death=new.death)),
            visible_at=moving.now,
            expires_at=moving.expires_at,
            moved_at=moving.now,
            deadline_at=new.deadline_at,
            received_at=page.received[slot] or None,
            first_received_at=page.first[slot] or None,
            delivery=page.delivery[slot] - 1,
            mark=moved_mark(message.id, keys.salt, number, new.mark, lasts=new.mark_until == FOREVER),
            mark_until=0,
        )

    def resume(self, at: int, page: Page, slots: Sequence[int], now: int) -> bool:
        """Finish the moves out of these slots whose movers did not return in time. Returns whether there were any."""
        moving = [slot for slot in slots if page.states[slot] & MOVING]
        for slot in moving:
            with suppress(StoreError):  # the other queue's server may be down, or full: retry in a minute
                self._resume(at * SLOTS + slot, now)
        return bool(moving)

    def _resume(self, number: int, now: int) -> tuple[Moved, Receipt | None]:
        """If the message has not arrived, undo the move and return its receipt."""
        keys, contents = self._keys, self._contents
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

        contents.pages.edit(at, take)
        record = contents.records.load_one(number) if mine else None
        if record is None:
            if mine:
                contents.pages.lose([number])
            return Moved.STALE, None
        hidden = Receipt(keys.name, keys.ids.make(number), mine[0])
        copy = record._replace(mark=moved_mark(contents.records.id_of(number, record), keys.salt, number, None, lasts=False))
        name = keys.link.get([keys.key("v", number)]).get(keys.key("v", number), b"").decode()
        target = self._catalogue.get(name) if name else None
        if target is not None and Arrival(self._catalogue, target, copy).arrive(mine[0], put=False) is Moved.DONE:
            contents.delete([hidden], Settlement(State.PROCESSED, now))
            return Moved.DONE, None
        contents.change([hidden], show)
        contents.pages.lower_bounds([at])
        return Moved.STALE, hidden


class Arrival:
    """The arrival of one message in its new queue."""

    def __init__(self, catalogue: MemcachedCatalogue, target: Contents, record: Record) -> None:
        self._target = target
        self._link = target.link
        self._record = record
        self._note = target.keys.mark(record.note)
        self._sender = Sender(catalogue, target.keys.name)

    def arrive(self, attempt: int, *, put: bool = True) -> Moved:
        """Insert the message, unless an earlier attempt has done so. DUPLICATE: its mark would count there, and another message
        has it. STALE: it is not there, and a later attempt has taken over from this one, which must not insert it any more.
        Without ``put``: only look, and take over from earlier attempts."""
        keys, records = self._target.keys, self._target.records
        while True:
            value, token = self._link.gets([self._note]).get(self._note, (b"", None))
            number, latest = MARK.unpack(value) if len(value) == MARK.size else (0, 0)
            if latest == ARRIVED:
                return Moved.DONE
            if latest > attempt:
                return Moved.STALE
            if number:
                begun = records.load_one(number) if self._is_empty(number) else None
                if begun is not None and not self._take_mark(number, begun):
                    if not self._give_up(number, begun):
                        return Moved.DONE
                    if put:
                        self._link.forget([self._note])
                        return Moved.DUPLICATE
                self._put_alias(number)
                if self._target.finish_send(number, records.load_one(number)).state(number % SLOTS) != VOID:
                    return Moved.DONE
            if not put:
                if self._link.cas(self._note, MARK.pack(0, attempt), token, MOVED_SECONDS):
                    return Moved.STALE
                continue
            head = self._link.incr(keys.key("head"), 1)
            if head is None:
                self._target.pages.recover()
                continue
            # Write the note before the record: a record without a note was left by a process that died.
            if self._link.cas(self._note, MARK.pack(head, attempt), token, MOVED_SECONDS):
                record = {head: self._record}
                parted = records.store(record)
                if not self._take_mark(head, self._record):
                    if not self._give_up(head, self._record):
                        return Moved.DONE
                    self._link.forget([self._note])
                    return Moved.DUPLICATE
                self._put_alias(head)
                self._sender.commit(self._target, record, parted, sent := set[int]())
                if sent:
                    return Moved.DONE
                records.discard(record)

    def _is_empty(self, number: int) -> bool:
        return self._target.pages.read_one(number // SLOTS)[0].states[number % SLOTS] == EMPTY

    def _put_alias(self, number: int) -> None:
        self._link.put({self._target.keys.alias(self._record.moved_id or ""): b"%d" % number})

    def _give_up(self, number: int, record: Record) -> bool:
        """Remove a message that must not arrive, as an equal one is there. Returns False if another mover has let it arrive."""
        if self._target.finish_send(number, None).state(number % SLOTS) != VOID:
            return False
        self._target.records.discard({number: record})
        return True

    def _take_mark(self, number: int, record: Record) -> bool:
        """Put the mark of an arriving message in force. Returns False if another message there has it."""
        if not record.is_marked:
            return True
        key, wanted = self._target.keys.mark(record.own_mark or b""), MARK.pack(number, FOREVER)
        while True:
            value, token = self._link.gets([key]).get(key, (b"", None))
            if value == wanted:
                return True
            if len(value) == MARK.size and MARK.unpack(value)[1] == FOREVER and self._target.in_force(value, 0):
                return False
            self._link.cas(key, wanted, token)
