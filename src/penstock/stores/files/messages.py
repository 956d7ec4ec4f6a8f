"""Operations on messages that are files: send, claim, extend, delete, move."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress

from penstock.message import FOREVER, OCTETS, Death, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.policy import next_delivery, readmit, same_settings
from penstock.stores.disk import is_full, sync, sync_file_system
from penstock.stores.encoding import Head
from penstock.stores.files.folder import Brief, Shelf
from penstock.stores.files.marks import FileMarks, Row
from penstock.stores.files.records import ASIDE, Extra, Hold
from penstock.stores.files.sidecar import FEW
from penstock.stores.ports import Claiming

ATTEMPTS = 20
"""How often a sender tries to find numbers that no other program uses."""


Journal = Callable[[Shelf, list[Row]], None]
"""Called with what is about to be published, so that others can finish it if we die."""


class FileMessages(FileMarks):
    # sending

    def insert(
        self, queue: str, entries: Sequence[Entry], now: int, settings: Settings, journal: Journal | None = None
    ) -> list[Sent] | None:
        entered = time.monotonic_ns()
        with self._queue(queue, check=False) as shelf:
            self._reserve.admit(sum([len(entry.body) for entry in entries]))
            for attempt in range(ATTEMPTS):
                try:
                    return self._insert(shelf, entries, now, settings, entered, journal)
                except OSError as error:
                    if is_full(error):  # reported here, because a send does not use the reserve
                        raise self._translate(error) from error
                    # Another program may have taken the same number at the same moment: `FileExistsError`.
                    if not isinstance(error, FileExistsError) or attempt + 1 == ATTEMPTS:
                        raise
        return None

    def _insert(
        self,
        shelf: Shelf,
        entries: Sequence[Entry],
        now: int,
        settings: Settings,
        entered: int,
        journal: Journal | None,
    ) -> list[Sent] | None:
        begun = False
        fresh: dict[str, Entry] = {}
        drafts: dict[str, int] = {}
        published: dict[str, int] = {}
        try:
            with shelf.reserving():
                waited = (time.monotonic_ns() - entered) // 1000  # for the lock, since `now`
                ids = shelf.take_ids(len(entries), now + waited)
                answers = self._without_duplicates(shelf, entries, iter(ids), now, fresh)
                for id in fresh:
                    drafts[id] = os.open(shelf.draft(id), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
                shelf.check_drafts(drafts)
            self._write(shelf, fresh, drafts)
            with shelf.changing(hidden=any(entry.visible_at > now for entry in fresh.values())):
                try:
                    if not same_settings(self._settings(shelf), settings):
                        self._take_back(shelf, fresh, drafts, published)
                        return None
                    answers = self._without_late_duplicates(shelf, answers, now, fresh, drafts)
                    rows = [
                        Row(id, entry.sent_at, entry.visible_at, entry.mark, entry.mark_until) for id, entry in fresh.items()
                    ]
                    if journal is not None:
                        journal(shelf, rows)
                        begun = True
                    self._write_marks(shelf, rows)
                    for row in rows:
                        self._publish(shelf, row, now, published)
                except BaseException:
                    if not begun:  # what is in the journal will be finished
                        self._take_back(shelf, fresh, drafts, published)
                    raise
        except BaseException:
            shelf.beside.give()
            if not begun:
                self._take_back(shelf, fresh, drafts, published)
            raise
        self._end_insert(shelf, rows)
        return answers

    def _publish(self, shelf: Shelf, row: Row, now: int, published: dict[str, int]) -> None:
        """Publish a draft, and record in ``published`` where it goes."""
        published[row.id] = hidden = shelf.writable(row.visible_at) if row.visible_at > now else 0
        shelf.publish(row.id, hidden)
        shelf.note(row.id, hidden)
        if hidden and (seal := shelf.seal(row.id, hidden)):
            shelf.set_hold(row.id, Hold(0, 0, row.sent_at, 0, 0, hidden, 1, seal=seal))

    def _end_insert(self, shelf: Shelf, rows: Sequence[Row]) -> None:
        touched = shelf.folders()
        if not any(row.mark for row in rows):
            self._dirty.update(touched)
            return
        for folder in touched:
            sync(folder)
        # A draft that reappears after a power cut would void its mark. It must not go before its message is durable.
        self._dirty.update({os.path.dirname(shelf.draft("0"))}.difference(touched))

    def _take_back(self, shelf: Shelf, fresh: dict[str, Entry], drafts: dict[str, int], published: dict[str, int]) -> None:
        """After a failed send: remove all of it, as far as the disk allows. What cannot be removed stays whole."""
        for id, handle in drafts.items():
            if handle >= 0:
                os.close(handle)
            with suppress(OSError):
                if id in published and not shelf.is_draft(id):
                    self._withdraw(shelf, id, published[id], fresh[id].mark)
                else:
                    self._drop_draft(shelf, id, fresh[id].mark)
        for lost in (drafts, fresh, published):  # the drafts first: if an interrupt comes here, this is called again
            lost.clear()

    def _withdraw(self, shelf: Shelf, id: str, hidden: int, mark: bytes | None) -> None:
        for path in filter(os.path.exists, shelf.places(id, hidden)):  # nowhere: another program has taken it, so it was sent
            try:
                os.rename(path, shelf.draft(id))  # so that it is never gone while its mark counts
            except FileNotFoundError:  # the other program was faster
                continue
            except OSError:  # removing a name is easier than making one
                if mark:
                    self._unmark(shelf, mark, id, published=False)
                os.unlink(path)
                shelf.forget(id)
            else:
                self._drop_draft(shelf, id, mark)
            finally:
                shelf.note(id, None)

    def _without_duplicates(
        self, shelf: Shelf, entries: Sequence[Entry], ids: Iterator[str], now: int, fresh: dict[str, Entry]
    ) -> list[Sent]:
        """The answer to each entry; those that are not duplicates are added to ``fresh``."""
        answers: list[Sent] = []
        marks: dict[bytes, str] = {}
        for entry in entries:
            first = entry.mark and (marks.get(entry.mark) or self._marked_by(shelf, entry.mark, now))
            if first:
                answers.append(Sent(first, True))
                continue
            id = next(ids)
            if entry.mark:
                marks[entry.mark] = id
            fresh[id] = entry
            answers.append(Sent(id))
        return answers

    def _without_late_duplicates(
        self, shelf: Shelf, answers: list[Sent], now: int, fresh: dict[str, Entry], drafts: dict[str, int]
    ) -> list[Sent]:
        """Another process may have sent an equal message since `_without_duplicates`, while we wrote ours."""
        late = {id: first for id, entry in fresh.items() if entry.mark and (first := self._marked_by(shelf, entry.mark, now))}
        for id in late:
            self._drop_draft(shelf, id, None)
            del fresh[id], drafts[id]
        return [Sent(late[sent.id], True) if sent.id in late else sent for sent in answers] if late else answers

    def _write(self, shelf: Shelf, fresh: dict[str, Entry], drafts: dict[str, int]) -> None:
        """Write and sync the bodies, and the heads of those that have one, without making them visible."""
        few = len(fresh) < FEW
        for id, entry in fresh.items():
            body, handle = entry.body, drafts[id]
            while (written := os.write(handle, body)) < len(body):
                body = body[written:]
            os.utime(handle, ns=(entry.sent_at * 1000, entry.sent_at * 1000))
            if few:
                os.fsync(handle)
            drafts[id] = -1
            os.close(handle)
        for id, entry in fresh.items():
            if not _is_plain(entry):
                extra = Extra(
                    Head(entry.content_type, entry.attributes, entry.visibility),
                    sent_at=entry.sent_at if entry.visible_at != entry.sent_at else None,
                    visible_at=entry.visible_at if entry.visible_at != entry.sent_at else None,
                    deadline_at=entry.deadline_at,
                    group=entry.group,
                    mark=entry.mark,
                )
                shelf.beside.write_json(extra.pack(), "head", id, durable=few)
        if not few:
            sync_file_system(self.root)
        elif any(entry.mark for entry in fresh.values()):
            sync(os.path.dirname(shelf.draft("0")))  # a mark on the disk without its draft would count

    # receiving and settling

    def claim(self, queue: str, claiming: Claiming) -> list[Message] | None:
        limit, now, until, known, holder, _, visible_by, _ = claiming
        with self._draining(queue, durable=False, check=False) as shelf:
            if known is not None and not same_settings(self._settings(shelf), known):
                return None
            if until is None:
                return self._look(shelf, limit, now, holder)
            until = shelf.writable(until)
            with shelf.changing() as section:
                shelf.refresh(eager=False, stamp=section.before)
                shelf.requeue(now)
                claimed: list[Message] = []
                left: list[str] = []
                while len(claimed) < limit and (id := shelf.choose_ready()) is not None:
                    if visible_by is not None and self._came_after(shelf, id, visible_by):
                        shelf.note(id, None)
                        left.append(id)
                        continue
                    try:
                        message = self._claim(shelf, id, now, until, holder)
                    except OSError as error:
                        if not claimed or not is_full(error):
                            raise
                        shelf.note(id, shelf.find(id))
                        break  # return fewer than requested
                    if message is not None:
                        claimed.append(message)
                for message in claimed:
                    shelf.note(message.id, message.visible_at)
                for id in left:
                    shelf.note(id, 0)
                return claimed

    def _came_after(self, shelf: Shelf, id: str, at: int) -> bool:
        message = self._message(shelf, id, 0, shelf.hold(id))
        return message is not None and message.visible_at > at

    def _look(self, shelf: Shelf, limit: int, now: int, holder: str | None) -> list[Message]:
        """Messages to be settled in this same batch stay where they are: the process that removes one gets it."""
        shelf.refresh(eager=False)
        first = shelf.first_hidden()
        if first and first[0] <= now:
            with shelf.changing():
                shelf.requeue(now)
        self._looked.append(shelf)
        found: list[Message] = []
        while len(found) < limit and (id := shelf.choose_ready()) is not None:
            shelf.note(id, None)
            before = shelf.beside.hold(id)
            message, head = self._message_and_head(shelf, id, 0, before)
            if message is not None:
                hold = _receive(message, before, now, FOREVER, holder)._replace(hidden_until=0, hidden_before=0)
                shelf.brief[id] = Brief(hold, before, alone=before is None and head is None)
                found.append(message)
        for message in found:
            shelf.note(message.id, 0)
        return found

    def _claim(self, shelf: Shelf, id: str, now: int, until: int, holder: str | None) -> Message | None:
        shelf.note(id, None)
        before = shelf.hold(id)
        # Read it first, because in the spool the claim's timer replaces the date.
        message = self._message(shelf, id, 0, before)
        if message is None:
            return None
        try:
            shelf.rename(shelf.path(id, 0), id, until)
            seal = shelf.seal(id, until)
        except FileNotFoundError:  # another process was first
            return None
        try:
            shelf.set_hold(id, _receive(message, before, now, until, holder)._replace(seal=seal))
        except BaseException:
            with suppress(OSError):
                if before is None:
                    shelf.beside.remove("held", id)
                shelf.rename(shelf.path(id, until), id, 0)
                shelf.note(id, 0)
            raise
        self._claimed.add(shelf.beside.hold_path(id))
        return message

    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        with self._draining(queue) as shelf, shelf.changing():
            return [self._extend(shelf, receipt, until, release) for receipt in receipts]

    def _extend(self, shelf: Shelf, receipt: Held, until: int, release: bool, *, aside: bool = False) -> bool:
        hidden = self._hidden_if_held(shelf, receipt)
        hold = shelf.hold(receipt.id) if hidden is not None else None
        if hidden is None or hold is None or (hold.released and not aside):
            return False
        until = shelf.writable(until)
        before, hold = hold, hold._replace(hidden_until=until, hidden_before=hidden, released=ASIDE if aside else int(release))
        if release:
            hold = hold._replace(holder=None)
        lasting = until >= FOREVER  # without its record, nobody could settle what is hidden for ever
        try:
            shelf.set_hold(receipt.id, hold, durable=lasting)
            shelf.rename(shelf.path(receipt.id, hidden), receipt.id, until)
            if seal := shelf.seal(receipt.id, until):
                shelf.set_hold(receipt.id, hold._replace(seal=seal))
        except FileNotFoundError:  # another process was first
            shelf.note(receipt.id, None)
            return False
        except BaseException:
            with suppress(OSError):
                self._keep_held(shelf, receipt.id, before._replace(hidden_until=until, hidden_before=hidden))
            raise
        if lasting:
            self._dirty.add(f"{shelf.beside.folder}/held")
        shelf.note(receipt.id, until)
        self._dirty.update(shelf.folders())
        return True

    def _keep_held(self, shelf: Shelf, id: str, hold: Hold) -> None:
        """After a failed extension: the receipt stays valid, wherever the message is."""
        with suppress(FileNotFoundError):
            hold = hold._replace(seal=shelf.seal(id, hold.hidden_until))
        shelf.set_hold(id, hold)

    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        with self._draining(queue, check=False) as shelf:
            if settings is not None and not same_settings(self._settings(shelf), settings):
                return None
            with shelf.changing(hidden=any(receipt.id not in shelf.brief for receipt in receipts)):
                return [self._delete(shelf, receipt, settlement) for receipt in receipts]

    def _delete(self, shelf: Shelf, receipt: Held, settlement: Settlement | None) -> bool:
        hidden = self._hidden_if_held(shelf, receipt)
        if hidden is None:
            return False
        brief = shelf.brief.get(receipt.id)
        extra = None if brief and brief.alone else Extra.unpack(shelf.beside.read_json("head", receipt.id))
        if settlement is not None and settlement.keep_until is not None:
            self._archive(shelf, receipt.id, hidden, settlement)
        try:
            shelf.remove(shelf.path(receipt.id, hidden), receipt.id)
        except FileNotFoundError:  # another process was first
            return False
        shelf.note(receipt.id, None)
        self._dirty.update(shelf.folders())
        if extra and extra.mark is not None:
            self._unmark(shelf, extra.mark, receipt.id)
        shelf.forget(receipt.id)
        self._claimed.discard(shelf.beside.hold_path(receipt.id))
        return True

    def _hidden_if_held(self, shelf: Shelf, receipt: Held) -> int | None:
        """Where the message is; None if the receipt is stale because we or another program have claimed it again."""
        if not shelf.number(receipt.id):
            return None
        brief = shelf.brief.get(receipt.id)
        if brief and receipt.delivery == brief.hold.delivery:
            return 0 if shelf.beside.hold(receipt.id) == brief.before else None
        hold = shelf.hold(receipt.id)
        if receipt.delivery is None or hold is None:
            return shelf.find(receipt.id, hold) if not receipt.delivery else None
        if receipt.delivery != hold.delivery:
            return None
        hidden = shelf.find(receipt.id, hold)
        return hidden if hidden in (0, hold.hidden_until, hold.hidden_before) else None

    def move(
        self, queue: str, receipts: Sequence[Held], target: str, now: int, expires_at: int, deaths: Sequence[Death | None]
    ) -> list[Moved]:
        with self._draining(queue) as shelf, self._queue(target) as there, ExitStack() as stack:
            # Always in the same order; and a queue's lock cannot be taken twice.
            for name in sorted({queue, target}):
                stack.enter_context(self.open(name).changing())
            pairs = zip(receipts, deaths, strict=True)
            return [self._move(shelf, receipt, there, now, expires_at, death) for receipt, death in pairs]

    def _move(self, shelf: Shelf, receipt: Held, there: Shelf, now: int, expires_at: int, death: Death | None) -> Moved:
        hidden = self._hidden_if_held(shelf, receipt)
        message = None if hidden is None else self._message(shelf, receipt.id, hidden, shelf.hold(receipt.id))
        if hidden is None or message is None or not message.intact:
            return Moved.STALE
        mark = Extra.unpack(shelf.beside.read_json("head", receipt.id)).mark
        new = readmit(message, mark, death, self._settings(shelf), self._settings(there), now)
        if new.mark and new.mark_until and self._is_marked(there, new.mark):
            return Moved.DUPLICATE
        id = receipt.id if there.find(receipt.id) is None else there.take_ids(1, now)[0]
        head = Head(message.content_type, message.attributes, message.visibility, death)
        extra = Extra(
            head,
            sent_at=message.sent_at,
            visible_at=now,
            expires_at=expires_at,
            deadline_at=new.deadline_at,
            group=message.group,
            mark=new.mark,
            moved_at=now,
        )
        there.beside.write_json(extra.pack(), "head", id)
        if message.delivery:
            seen = message.first_received_at or now, message.received_at or now
            there.set_hold(id, Hold(0, message.delivery, message.sent_at, *seen, 0, 1))
        if new.mark and new.mark_until:
            self._write_marks(there, [Row(id, message.sent_at, now, new.mark, new.mark_until)])
        shelf.note(receipt.id, None)
        try:
            there.rename(shelf.path(receipt.id, hidden), id, 0)
        except FileNotFoundError:  # another process was first
            there.forget(id)
            if new.mark and new.mark_until:
                self._unmark(there, new.mark, id)
            return Moved.STALE
        there.arrive(id)
        there.note(id, 0)
        if mark is not None:
            self._unmark(shelf, mark, receipt.id)
        shelf.forget(receipt.id)
        self._claimed.discard(shelf.beside.hold_path(receipt.id))
        self._dirty.update(shelf.folders() + there.folders())
        return Moved.DONE

    def set_aside(self, queue: str, receipts: Sequence[Held]) -> list[bool]:
        with self._queue(queue) as shelf, shelf.changing():
            return [self._extend(shelf, receipt, FOREVER, release=False, aside=True) for receipt in receipts]


def _is_plain(entry: Entry) -> bool:
    """Whether the entry needs no sidecar files."""
    return entry[1:3] == (OCTETS, {}) and entry.visible_at == entry.sent_at and entry[6:10] == (None, None, None, None)


def _receive(message: Message, before: Hold | None, now: int, until: int, holder: str | None) -> Hold:
    """Mark a message as received until then. Returns its record."""
    hold = before or Hold(0, 0, message.sent_at, now, now, 0, 1)
    hold = hold._replace(
        receives=hold.receives + 1,
        delivery=next_delivery(hold.delivery, now),
        first_received_at=hold.first_received_at or now,
        received_at=now,
        hidden_until=until,
        hidden_before=until,
        released=0,
        holder=holder,
    )
    message.state = State.CONSUMED
    message.visible_at, message.received_at, message.first_received_at = until, now, hold.first_received_at
    message.receives, message.delivery, message.holder = hold.receives, hold.delivery, holder
    message.lapsed = before is not None and not before.released
    return hold
