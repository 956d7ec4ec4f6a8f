"""The history of a file queue: a file for each settled message.

settled/AT.ID     one line of JSON, {"fields", "extra", "keep_until", "size"}, and then the body
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from penstock.message import Held, Message, Settlement, State
from penstock.stores.disk import read_whole, write_whole
from penstock.stores.encoding import head_of
from penstock.stores.files.opening import Opening
from penstock.stores.files.records import DAMAGE, Extra, check_head, check_settled, is_instant, need
from penstock.stores.ports import START, History

IN_HEAD = ("body", "attributes", "home", "retry", "failures", "error")
"""What is not among the fields: it is in the head, or after the line."""


class FileHistory(History):
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._folder = opening.folder
        self._at = self._folder.sidecar.folder / "settled"

    def browse(self, limit: int, *, after: tuple[int, int] = START) -> list[Message]:
        with self._opening.visit(durable=False):
            self._folder.refresh()
            found: list[Message] = []
            for name in sorted((name for name in self._gone() if self._order(name) > after), key=self._order):
                message = self._read(name)
                if message is not None:
                    found.append(message)
                if len(found) == limit:
                    break
            return found

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        found: list[Message] = []
        with self._opening.visit(durable=False):
            self._folder.refresh()
            for number, name in sorted((self._order(name)[1], name) for name in self._gone()):
                if start <= number < stop and (len(found) < limit or number == found[-1].number):
                    message = self._read(name)
                    found += [] if message is None else [message]
        return found

    def span(self) -> tuple[int, int, int]:
        with self._opening.visit(durable=False):
            self._folder.refresh()
            numbers = [self._order(name)[1] for name in self._gone()]
        return len(numbers), min(numbers, default=0), max(numbers, default=0)

    def _gone(self) -> list[str]:
        """Those that are in the history alone: a settler may have been killed between the record and the removal."""
        return [name for name in self.names() if name.partition(".")[2] not in self._folder.index]

    def amend(self, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self._opening.visit():
            names: dict[str, list[str]] = {}
            for name in self.names():
                names.setdefault(name.partition(".")[2], []).append(name)
            return [self._amend(names.get(receipt.id, []), receipt, state, reason) for receipt in receipts]

    def _amend(self, names: list[str], receipt: Held, state: State, reason: str | None) -> bool:
        for name in names:
            message = self._read(name)
            if message is not None and receipt.delivery in (None, message.delivery):
                path = self._at / name
                head, _, body = path.read_bytes().partition(b"\n")
                record = json.loads(head)
                record["fields"] |= {"state": state, "reason": reason}
                write_whole(path, json.dumps(record).encode() + b"\n" + body)
                return True
        return False

    # for the queue, in a batch

    def names(self) -> list[str]:
        """Skips names that are not ours."""
        return [name for name in self._folder.sidecar.names("settled") if self.is_ours(name)]

    def is_ours(self, name: str) -> bool:
        at, _, id = name.partition(".")
        return at.isdecimal() and self._folder.layout.number(id) > 0

    def add(self, message: Message, settlement: Settlement) -> None:
        fields = asdict(replace(message, body=b"", attributes={}, death=None, key=None, retry=None, state=settlement.state))
        extra = Extra(head_of(message), mark=message.key)
        fields |= {"settled_at": settlement.settled_at, "reason": settlement.reason}
        record = {
            "fields": {name: fields[name] for name in fields if name not in IN_HEAD},
            "extra": extra.pack(),
            "keep_until": settlement.keep_until,
            "size": len(message.body),
        }
        content = json.dumps(record).encode() + b"\n" + message.body
        write_whole(self._at / f"{settlement.settled_at:017d}.{message.id}", content)

    def sweep(self, name: str, now: int) -> None:
        """Remove a record that is no longer kept, or whose message was never removed because its settler was killed."""
        path = f"{self._at}/{name}"
        try:
            with open(path, "rb") as file:
                keep_until = json.loads(file.readline())["keep_until"]
            need(is_instant(keep_until))
        except FileNotFoundError:
            return
        except DAMAGE:
            self._folder.sidecar.set_aside(path, read_whole(path) or b"")
            return
        id = name.partition(".")[2]
        if keep_until <= now or (id in self._folder.index and self._folder.find(id) is not None):
            self._folder.sidecar.remove("settled", name)

    def _order(self, name: str) -> tuple[int, int]:
        at, _, id = name.partition(".")
        return int(at), self._folder.layout.number(id)

    def _read(self, name: str) -> Message | None:
        """A message of the history; None if it has just gone, or is damaged."""
        path = f"{self._at}/{name}"
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
            fields |= {"key": extra.mark, "attributes": extra.head.attributes, "body": body, "retry": extra.head.retry}
            fields |= {"failures": extra.head.failures, "error": extra.head.error}
            message = Message(**fields)
            check_settled(message)
        except DAMAGE:
            self._folder.sidecar.set_aside(path, content)
            return None
        return message
