"""How a file store recognises duplicates.

    mark/SHA256    {"id": the message, "until": the instant until which the mark counts; FOREVER: while the message is there}

A mark is written, and synced, after its message's draft and head and before the message is published, all under the queue's
lock. So it need not record whether its message was published: while the draft exists it was not, and once the draft is gone it
was, even if the message was received and deleted since. A draft must therefore never be removed before its mark.

An id alone proves nothing, as it can be reused after a crash (VSQS numbers are milliseconds). So the head of a draft or message
contains the mark too, and the two are compared.

Earlier versions wrote the mark before the draft, with `"published": false` until the message was published. Such a mark counts
while its message is there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.file_times import is_orphaned
from penstock.message import FOREVER
from penstock.stores.disk import sync, sync_file_system
from penstock.stores.files.opening import Opening
from penstock.stores.files.records import Extra
from penstock.stores.files.sidecar import FEW, digest


class MarkRow(NamedTuple):
    """A message whose draft is written and that is about to be published."""

    id: str
    sent_at: int
    visible_at: int
    mark: bytes | None
    mark_until: int


class FileMarks:
    """The marks of one queue."""

    def __init__(self, opening: Opening) -> None:
        self._folder = opening.folder
        self._sidecar = opening.folder.sidecar
        self._transactions = opening.transactions

    def write(self, rows: Sequence[MarkRow]) -> None:
        """Needs the lock. Call it before any of them is published."""
        few = len(rows) < FEW
        for row in rows:
            if row.mark:
                self._sidecar.write_json({"id": row.id, "until": row.mark_until}, "mark", digest(row.mark), durable=few)
        if not few and any(row.mark for row in rows):
            sync_file_system(self._transactions.root)

    def first_with(self, mark: bytes, now: int) -> str | None:
        """The message of which one with this mark is a duplicate."""
        name = digest(mark)
        record = self._sidecar.read_json("mark", name)
        if not record or record["until"] <= now or not self._counts(name, record):
            return None
        id = str(record["id"])
        # Its sender may not have synced it yet, but our caller may rely on it.
        self._transactions.dirty.update(os.path.dirname(self._folder.layout.path(id, hidden)) for hidden in (0, 1))
        return id

    def _counts(self, name: str, record: dict[str, Any]) -> bool:
        """Whether a mark that has not expired belongs to a published message (that is still there, if it must be)."""
        id = str(record["id"])
        if record["until"] == FOREVER or not record.get("published", True):
            return self._folder.find(id) is not None and self._is_of(id, name)
        return not self._folder.is_draft(id) or not self._is_of(id, name, unknown=True)

    def _is_of(self, id: str, name: str, *, unknown: bool = False) -> bool:
        """Whether the head of this message or draft has this mark; ``unknown`` is the answer if it has no head."""
        head = self._sidecar.read_json("head", id)
        if head is None:
            return unknown
        mark = Extra.unpack(head).mark
        return mark is not None and digest(mark) == name

    def remove(self, mark: bytes, id: str, *, published: bool = True) -> bool:
        """Remove the mark of a message that has gone, unless it counts for longer; or of one that was not ``published``."""
        record = self._sidecar.read_json("mark", digest(mark))
        if not record or record["id"] != id or (published and record["until"] != FOREVER):
            return False
        self._sidecar.remove("mark", digest(mark))
        return True

    def drop_draft(self, id: str, mark: bytes | None) -> None:
        """Remove a draft and its sidecar files. Needs the lock if there can be a mark."""
        if mark and self.remove(mark, id, published=False):
            sync(self._sidecar.folder / "mark")
        os.unlink(self._folder.layout.draft(id))
        self._folder.forget(id)

    def is_marked(self, mark: bytes) -> bool:
        """Whether the queue contains a message that carries this mark for as long as it is there."""
        record = self._sidecar.read_json("mark", digest(mark))
        return bool(record) and record["until"] == FOREVER and self._counts(digest(mark), record)

    def bearer(self, mark: bytes) -> str | None:
        """The message in the queue to which this mark belongs, however long it counts."""
        record = self._sidecar.read_json("mark", digest(mark))
        return str(record["id"]) if record and self._counts(digest(mark), {**record, "until": FOREVER}) else None

    def count(self) -> int:
        """How many messages carry a mark for as long as they are in the queue."""
        self._folder.refresh()
        records = [(name, self._sidecar.read_json("mark", name)) for name in self._sidecar.names("mark")]
        lasting = [(name, record) for name, record in records if record and record["until"] == FOREVER]
        return sum(record["id"] in self._folder.index and self._is_of(record["id"], name) for name, record in lasting)

    def sweep(self, name: str, now: int) -> None:
        """Remove a mark that has expired, or whose message a dead process never sent."""
        record = self._sidecar.read_json("mark", name)
        if record and (record["until"] <= now or (not self._counts(name, record) and is_orphaned(self._path(name)))):
            self._sidecar.remove("mark", name)

    def _path(self, name: str) -> str:
        return f"{self._sidecar.folder}/mark/{name}"
