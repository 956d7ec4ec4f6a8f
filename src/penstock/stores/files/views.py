"""Looking at messages that are files: reading, browsing, counting, and the history."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from penstock.message import FOREVER, Counts, Held, Message, Settings, Settlement, State
from penstock.policy import key_of, micros
from penstock.stores.disk import read_whole, write_whole
from penstock.stores.encoding import Head
from penstock.stores.files.catalogue import FileCatalogue
from penstock.stores.files.folder import Shelf
from penstock.stores.files.records import ASIDE, DAMAGE, Extra, Hold, check_head, check_settled, is_instant, need
from penstock.stores.ports import START

MOST_FOREIGN = 100
"""The maximum number of foreign files that are named."""


class FileViews(FileCatalogue):
    # one message

    def _message(self, shelf: Shelf, id: str, hidden: int, hold: Hold | None) -> Message | None:
        return self._message_and_head(shelf, id, hidden, hold)[0]

    def _message_and_head(self, shelf: Shelf, id: str, hidden: int, hold: Hold | None) -> tuple[Message | None, Any]:
        path = shelf.path(id, hidden)
        try:
            status = os.stat(path)
        except FileNotFoundError:  # another process was first
            return None, None
        if not stat.S_ISREG(status.st_mode):  # another program's folder or, worse, a pipe that would block us
            shelf.note(id, None)
            shelf.foreign.append(path)
            return None, None
        body = read_whole(path)
        if body is None:
            return None, None
        head = shelf.beside.read_json("head", id)
        extra = Extra.unpack(head)
        number = shelf.number(id)
        sent_at = extra.sent_at or (hold.sent_at if hold else shelf.sent_at(id, status))
        foreign = hold is None and hidden > 0 and extra.visible_at != hidden  # claimed by a program that keeps no record
        consumed = foreign if hold is None else not hold.released
        received = hold if hold and hold.first_received_at else None
        ours = hold is not None and hidden in (0, hold.hidden_until, hold.hidden_before)  # not claimed by another program since
        shown = extra.visible_at if hold is None or not hold.hidden_until else hold.hidden_until
        message = Message(
            id=id,
            number=number,
            queue=shelf.queue,
            body=body,
            content_type=extra.head.content_type,
            attributes=extra.head.attributes,
            state=State.DAMAGED if hold and hold.released == ASIDE else State.CONSUMED if consumed else State.QUEUED,
            receives=hold.receives if hold else 0,
            delivery=hold.delivery if hold else 0,
            sent_at=sent_at,
            visible_at=hidden or (sent_at if shown is None else shown),
            expires_at=extra.expires_at or sent_at + self._retention(shelf, number),
            deadline_at=extra.deadline_at,
            visibility=extra.head.visibility,
            group=extra.group,
            key=key_of(extra.mark),
            moved_at=extra.moved_at,
            first_received_at=received and received.first_received_at,
            received_at=received and received.received_at,
            death=extra.head.death,
            holder=hold.holder if hold and ours else None,
            intact=extra.intact,
        )
        return message, head

    def _archive(self, shelf: Shelf, id: str, hidden: int, settlement: Settlement) -> None:
        message = self._message(shelf, id, hidden, shelf.hold(id))
        if message is None:
            return
        fields = asdict(replace(message, body=b"", attributes={}, death=None, key=None, state=settlement.state))
        extra = Extra(Head(message.content_type, message.attributes, message.visibility, message.death), mark=message.key)
        fields |= {"settled_at": settlement.settled_at, "reason": settlement.reason}
        record = {
            "fields": {name: fields[name] for name in fields if name not in ("body", "attributes", "home")},
            "extra": extra.pack(),
            "keep_until": settlement.keep_until,
            "size": len(message.body),
        }
        name = f"{settlement.settled_at:017d}.{id}"
        content = json.dumps(record).encode() + b"\n" + message.body
        write_whole(shelf.beside.folder / "settled" / name, content)

    def _retention(self, shelf: Shelf, number: int) -> int:
        """The retention that applied when the message was sent."""
        record = shelf.beside.settings()
        if not record:
            return micros(Settings().retention)
        return micros([seconds for since, seconds in record["retentions"] if since < number or number < shelf.undated][-1])

    # looking

    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        with self._queue(queue, durable=False) as shelf:
            shelf.refresh()
            numbers = sorted((shelf.number(id), id) for id, hidden in shelf.index.items() if now is None or hidden <= now)
            found: list[Message] = []
            for number, id in numbers:
                if number > after[1] and len(found) < limit:
                    message = self._message(shelf, id, shelf.index[id], shelf.hold(id))
                    if message is not None and (state is None or message.state is state):
                        found.append(message)
            return found

    def count(self, queue: str, now: int) -> Counts:
        with self._queue(queue, durable=False) as shelf:
            shelf.refresh()
            visible = in_flight = aside = 0
            for id, hidden in shelf.index.items():
                if hidden <= now:
                    visible += 1
                    continue
                hold = shelf.hold(id)
                if hold is None:
                    extra = Extra.unpack(shelf.beside.read_json("head", id))
                    in_flight += extra.visible_at != hidden
                else:
                    in_flight += not hold.released
                    aside += hold.released == ASIDE
            first = min(shelf.index, key=shelf.number, default=None)
            oldest = None if first is None else self._message(shelf, first, shelf.index[first], shelf.hold(first))
            return Counts(
                messages=len(shelf.index),
                visible=visible,
                in_flight=in_flight,
                delayed=len(shelf.index) - visible - in_flight - aside,
                blocked=0,
                damaged=aside + shelf.beside.damaged(),
                settled=len(settled_names(shelf)),
                oldest_at=None if oldest is None else oldest.sent_at,
                foreign=self.foreign(queue),
            )

    def foreign(self, queue: str) -> list[str]:
        with self._queue(queue, durable=False, check=False) as shelf:
            return sorted(os.path.relpath(name, self.root) for name in shelf.foreign)[:MOST_FOREIGN]

    def due(self, queue: str) -> int | None:
        with self._queue(queue, durable=False) as shelf:
            shelf.refresh()
            if shelf.first_ready() is not None:
                return 0
            first = shelf.first_hidden()
            return None if first is None or first[0] >= FOREVER else first[0]

    # the history

    def settled(self, queue: str, limit: int) -> list[Message]:
        with self._queue(queue, durable=False) as shelf:
            shelf.refresh()
            found: list[Message] = []
            for name in sorted(settled_names(shelf), key=lambda name: _settled_order(shelf, name)):
                if name.split(".", 1)[1] in shelf.index:
                    continue  # its settler was killed between the record and the removal
                message = self._settled(shelf, name)
                if message is not None:
                    found.append(message)
                if len(found) == limit:
                    break
            return found

    def amend(self, queue: str, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self._queue(queue) as shelf:
            names: dict[str, list[str]] = {}
            for name in settled_names(shelf):
                names.setdefault(name.partition(".")[2], []).append(name)
            return [self._amend(shelf, names.get(receipt.id, []), receipt, state, reason) for receipt in receipts]

    def _amend(self, shelf: Shelf, names: list[str], receipt: Held, state: State, reason: str | None) -> bool:
        for name in names:
            message = self._settled(shelf, name)
            if message is not None and receipt.delivery in (None, message.delivery):
                path = shelf.beside.folder / "settled" / name
                head, _, body = path.read_bytes().partition(b"\n")
                record = json.loads(head)
                record["fields"] |= {"state": state, "reason": reason}
                write_whole(path, json.dumps(record).encode() + b"\n" + body)
                return True
        return False

    def _settled(self, shelf: Shelf, name: str) -> Message | None:
        """A message of the history; None if it has just gone, or is damaged."""
        path = f"{shelf.beside.folder}/settled/{name}"
        content = read_whole(path)
        if content is None:
            return None
        try:
            head, _, body = content.partition(b"\n")
            record = json.loads(head)
            need(record.get("size", len(body)) == len(body))
            extra = Extra.unpack(record["extra"])
            check_head(extra.head)
            fields = record["fields"] | {"state": State(record["fields"]["state"]), "death": extra.head.death}
            fields |= {"key": extra.mark, "attributes": extra.head.attributes, "body": body}
            message = Message(**fields)
            check_settled(message)
        except DAMAGE:
            shelf.beside.set_aside(path, content)
            return None
        return message

    def _kept_until(self, shelf: Shelf, name: str) -> int | None:
        """Until when a message stays in the history; None if it has just gone, or is damaged."""
        path = f"{shelf.beside.folder}/settled/{name}"
        try:
            with open(path, "rb") as file:
                head = file.readline()
            record = json.loads(head)
            need(is_instant(record["keep_until"]))
            return int(record["keep_until"])
        except FileNotFoundError:
            return None
        except DAMAGE:
            shelf.beside.set_aside(path, read_whole(path) or b"")
            return None


def settled_names(shelf: Shelf) -> list[str]:
    """Skips names that are not ours."""
    names = (name.partition(".") for name in shelf.beside.names("settled"))
    return ["".join(parts) for parts in names if parts[0].isdecimal() and shelf.number(parts[2])]


def _settled_order(shelf: Shelf, name: str) -> tuple[int, int]:
    at, _, id = name.partition(".")
    return int(at), shelf.number(id)
