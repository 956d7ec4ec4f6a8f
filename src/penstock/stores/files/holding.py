"""Receiving, and what a receiver does with its messages: extend, delete, move, set aside."""

from __future__ import annotations

from contextlib import suppress

from penstock.message import FOREVER, Held, Message, Moved, Receipt, Settlement, State, next_delivery
from penstock.stores.disk import is_full
from penstock.stores.encoding import Head
from penstock.stores.files.folder import Brief
from penstock.stores.files.history import FileHistory
from penstock.stores.files.marks import FileMarks, MarkRow
from penstock.stores.files.opening import Opening
from penstock.stores.files.records import ASIDE, Extra, Received
from penstock.stores.requests import Claiming, Moving


class HeldFiles:
    """The messages of one queue that were received, and their receipts. Every method needs the queue's lock, except `look`."""

    def __init__(self, opening: Opening, marks: FileMarks, history: FileHistory) -> None:
        self._opening = opening
        self._folder = opening.folder
        self._layout = opening.folder.layout
        self._sidecar = opening.folder.sidecar
        self._transactions = opening.transactions
        self._marks = marks
        self._history = history

    def claim(self, claiming: Claiming, until: int) -> list[Message]:
        folder = self._folder
        until = self._layout.writable(until)
        folder.requeue(claiming.now)
        claimed: list[Message] = []
        left: list[str] = []
        while len(claimed) < claiming.limit and (id := folder.choose_ready()) is not None:
            if claiming.visible_by is not None and self._came_after(id, claiming.visible_by):
                folder.note(id, None)
                left.append(id)
                continue
            try:
                message = self._claim(id, claiming.now, until, claiming.holder)
            except OSError as error:
                if not claimed or not is_full(error):
                    raise
                folder.note(id, folder.find(id))
                break  # return fewer than requested
            if message is not None:
                claimed.append(message)
        for message in claimed:
            folder.note(message.id, message.visible_at)
        for id in left:
            folder.note(id, 0)
        return claimed

    def _came_after(self, id: str, at: int) -> bool:
        message = self._folder.read(id, 0)
        return message is not None and message.visible_at > at

    def _claim(self, id: str, now: int, until: int, holder: str | None) -> Message | None:
        folder, layout = self._folder, self._layout
        folder.note(id, None)
        before = folder.received(id)
        # Read it first, because in the spool the claim's timer replaces the date.
        message, _ = self._folder.read_with_head(id, 0, before)
        if message is None:
            return None
        try:
            layout.rename(layout.path(id, 0), id, until)
            seal = layout.seal(id, until)
        except FileNotFoundError:  # another process was first
            return None
        try:
            folder.write_received(id, _receive(message, before, now, until, holder)._replace(seal=seal))
        except BaseException:
            with suppress(OSError):
                if before is None:
                    self._sidecar.remove("held", id)
                layout.rename(layout.path(id, until), id, 0)
                folder.note(id, 0)
            raise
        self._transactions.claimed.add(self._sidecar.received_path(id))
        return message

    def look(self, claiming: Claiming) -> list[Message]:
        """Messages to be settled in this same batch stay where they are: the process that removes one gets it."""
        folder = self._folder
        folder.refresh(eager=False)
        first = folder.first_hidden()
        if first and first[0] <= claiming.now:
            with folder.changing():
                folder.requeue(claiming.now)
        folder.changes = True
        found: list[Message] = []
        while len(found) < claiming.limit and (id := folder.choose_ready()) is not None:
            folder.note(id, None)
            before = self._sidecar.received(id)
            message, head = self._folder.read_with_head(id, 0, before)
            if message is not None:
                received = _receive(message, before, claiming.now, FOREVER, claiming.holder)
                received = received._replace(hidden_until=0, hidden_before=0)
                folder.brief[id] = Brief(received, before, alone=before is None and head is None)
                found.append(message)
        for message in found:
            folder.note(message.id, 0)
        folder.changes = False
        return found

    def extend(
        self, receipt: Held, until: int, *, release: bool = False, aside: bool = False, error: str | None = None
    ) -> bool:
        folder, layout, id = self._folder, self._layout, receipt.id
        hidden = self._locate(receipt)
        before = folder.received(id) if hidden is not None else None
        if aside and before is None and hidden is not None:  # found damaged before anybody has received it
            message = folder.read(id, hidden)
            before = None if message is None else Received(0, 0, message.sent_at, 0, 0, hidden, 1)
        if hidden is None or before is None or (before.released and not aside):
            return False
        until = layout.writable(until)
        received = before._replace(hidden_until=until, hidden_before=hidden, released=ASIDE if aside else int(release))
        if release:
            received = received._replace(holder=None)
        if error is not None:
            self._note_failure(id, error)
        lasting = until >= FOREVER  # without its record, nobody could settle what is hidden for ever
        try:
            folder.write_received(id, received, durable=lasting)
            layout.rename(layout.path(id, hidden), id, until)
            if seal := layout.seal(id, until):
                folder.write_received(id, received._replace(seal=seal))
        except FileNotFoundError:  # another process was first
            folder.note(id, None)
            return False
        except BaseException:
            with suppress(OSError):
                self._keep_receipt(id, before._replace(hidden_until=until, hidden_before=hidden))
            raise
        if lasting:
            self._transactions.dirty.add(f"{self._sidecar.folder}/held")
        folder.note(id, until)
        self._transactions.dirty.update(layout.touched())
        return True

    def _note_failure(self, id: str, error: str) -> None:
        extra = Extra.unpack(self._sidecar.read_json("head", id))
        head = extra.head._replace(failures=extra.head.failures + 1, error=error)
        self._sidecar.write_json(extra._replace(head=head).pack(), "head", id)

    def _keep_receipt(self, id: str, received: Received) -> None:
        """After a failed extension: the receipt stays valid, wherever the message is."""
        with suppress(FileNotFoundError):
            received = received._replace(seal=self._layout.seal(id, received.hidden_until))
        self._folder.write_received(id, received)

    def delete(self, receipt: Held, settlement: Settlement | None) -> bool:
        folder, id = self._folder, receipt.id
        hidden = self._locate(receipt)
        if hidden is None:
            return False
        brief = folder.brief.get(id)
        extra = None if brief and brief.alone else Extra.unpack(self._sidecar.read_json("head", id))
        if settlement is not None and settlement.keep_until is not None:
            message = self._folder.read(id, hidden)
            if message is not None:
                self._history.add(message, settlement)
        try:
            self._layout.remove(self._layout.path(id, hidden), id)
        except FileNotFoundError:  # another process was first
            return False
        folder.note(id, None)
        self._transactions.dirty.update(self._layout.touched())
        if extra and extra.mark is not None:
            self._marks.remove(extra.mark, id)
        self._forget(id)
        return True

    def _forget(self, id: str) -> None:
        """Remove the sidecar files of a message that is gone."""
        self._folder.forget(id)
        self._transactions.claimed.discard(self._sidecar.received_path(id))

    def _locate(self, receipt: Held) -> int | None:
        """Until when the message is hidden; None if the receipt is stale: we or another program have claimed it again."""
        folder = self._folder
        if not self._layout.number(receipt.id):
            return None
        brief = folder.brief.get(receipt.id)
        if brief and receipt.delivery == brief.received.delivery:
            return 0 if self._sidecar.received(receipt.id) == brief.before else None
        received = folder.received(receipt.id)
        if receipt.delivery is None or received is None:
            return folder.find(receipt.id, received) if not receipt.delivery else None
        if receipt.delivery != received.delivery:
            return None
        hidden = folder.find(receipt.id, received)
        return hidden if hidden in (0, received.hidden_until, received.hidden_before) else None

    def move(self, receipt: Held, there: HeldFiles, moving: Moving) -> Moved:
        """``there`` is the same part of the target queue, whose lock is held too."""
        hidden = self._locate(receipt)
        message = None if hidden is None else self._folder.read(receipt.id, hidden)
        if hidden is None or message is None or not message.intact:
            return Moved.STALE
        now, mark = moving.now, Extra.unpack(self._sidecar.read_json("head", receipt.id)).mark
        new = moving.readmit(message, mark, moving.death, self._opening.settings(), there._opening.settings(), now)
        lasting = new.mark if new.mark_until else None
        if lasting and there._marks.is_marked(lasting):
            return Moved.DUPLICATE
        taken = there._folder.find(receipt.id) is not None
        id = there._layout.take_ids(1, now)[0] if taken else receipt.id
        extra = Extra(
            Head(message.content_type, message.attributes, message.visibility, new.death, message.retry),
            sent_at=message.sent_at,
            visible_at=now,
            expires_at=moving.expires_at,
            deadline_at=new.deadline_at,
            group=message.group,
            mark=new.mark,
            moved_at=now,
        )
        there._sidecar.write_json(extra.pack(), "head", id)
        if message.delivery:
            seen = message.first_received_at or now, message.received_at or now
            there._folder.write_received(id, Received(0, message.delivery, message.sent_at, *seen, 0, 1))
        if lasting:
            there._marks.write([MarkRow(id, message.sent_at, now, lasting, new.mark_until)])
        self._folder.note(receipt.id, None)
        try:
            there._layout.rename(self._layout.path(receipt.id, hidden), id, 0)
        except FileNotFoundError:  # another process was first
            there._folder.forget(id)
            if lasting:
                there._marks.remove(lasting, id)
            return Moved.STALE
        there._layout.arrive(id)
        there._folder.note(id, 0)
        if mark is not None:
            self._marks.remove(mark, receipt.id)
        self._forget(receipt.id)
        self._transactions.dirty.update(self._layout.touched() + there._layout.touched())
        return Moved.DONE

    def free_unclaimed(self, claimed: set[tuple[str, int]], now: int) -> None:
        """Release messages that are hidden for ever by a damaged claim, or whose own record was damaged.

        ``claimed`` are the messages and deliveries of all named claims."""
        folder, layout = self._folder, self._layout
        for id in [id for id, hidden in folder.index.items() if hidden >= FOREVER]:
            received = folder.received(id)
            if received is None:
                layout.rename(layout.path(id, FOREVER), id, 0)
                folder.note(id, 0)
                self._transactions.dirty.update(layout.touched())
            elif received.released != ASIDE and (id, received.delivery) not in claimed:
                self.extend(Receipt(self._opening.name, id, received.delivery), now, release=True)


def _receive(message: Message, before: Received | None, now: int, until: int, holder: str | None) -> Received:
    """Mark a message as received until then. Returns its record."""
    received = before or Received(0, 0, message.sent_at, now, now, 0, 1)
    received = received._replace(
        receives=received.receives + 1,
        delivery=next_delivery(received.delivery, now),
        first_received_at=received.first_received_at or now,
        received_at=now,
        hidden_until=until,
        hidden_before=until,
        released=0,
        holder=holder,
    )
    message.state = State.CONSUMED
    message.visible_at, message.received_at, message.first_received_at = until, now, received.first_received_at
    message.receives, message.delivery, message.holder = received.receives, received.delivery, holder
    message.lapsed = before is not None and not before.released
    return received
