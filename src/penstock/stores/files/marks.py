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

from penstock.message import FOREVER
from penstock.stores.disk import sync, sync_file_system
from penstock.stores.files.folder import Shelf
from penstock.stores.files.records import Extra
from penstock.stores.files.sidecar import FEW, digest
from penstock.stores.files.views import FileViews


class Row(NamedTuple):
    """A message whose draft is written and that is about to be published."""

    id: str
    sent_at: int
    visible_at: int
    mark: bytes | None
    mark_until: int


class FileMarks(FileViews):
    def _write_marks(self, shelf: Shelf, rows: Sequence[Row]) -> None:
        """Needs the lock. Call it before any of them is published."""
        few = len(rows) < FEW
        for row in rows:
            if row.mark:
                shelf.beside.write_json({"id": row.id, "until": row.mark_until}, "mark", digest(row.mark), durable=few)
        if not few and any(row.mark for row in rows):
            sync_file_system(self.root)

    def _marked_by(self, shelf: Shelf, mark: bytes, now: int) -> str | None:
        """The message of which one with this mark is a duplicate."""
        name = digest(mark)
        record = shelf.beside.read_json("mark", name)
        if not record or record["until"] <= now or not self._counts(shelf, name, record):
            return None
        id = str(record["id"])
        # Its sender may not have synced it yet, but our caller may rely on it.
        self._dirty.update(os.path.dirname(shelf.path(id, hidden)) for hidden in (0, 1))
        return id

    def _counts(self, shelf: Shelf, name: str, record: dict[str, Any]) -> bool:
        """Whether a mark that has not expired belongs to a published message (that is still there, if it must be)."""
        id = str(record["id"])
        if record["until"] == FOREVER or not record.get("published", True):
            return shelf.find(id) is not None and self._bears(shelf, id, name)
        return not shelf.is_draft(id) or not self._bears(shelf, id, name, unknown=True)

    def _bears(self, shelf: Shelf, id: str, name: str, *, unknown: bool = False) -> bool:
        """Whether the head of this message or draft has this mark; ``unknown`` is the answer if it has no head."""
        head = shelf.beside.read_json("head", id)
        if head is None:
            return unknown
        mark = Extra.unpack(head).mark
        return mark is not None and digest(mark) == name

    def _unmark(self, shelf: Shelf, mark: bytes, id: str, *, published: bool = True) -> bool:
        """Remove the mark of a message that has gone, unless it counts for longer; or of one that was not ``published``."""
        record = shelf.beside.read_json("mark", digest(mark))
        if not record or record["id"] != id or (published and record["until"] != FOREVER):
            return False
        shelf.beside.remove("mark", digest(mark))
        return True

    def _drop_draft(self, shelf: Shelf, id: str, mark: bytes | None) -> None:
        """Remove a draft and its sidecar files. Needs the lock if there can be a mark."""
        if mark and self._unmark(shelf, mark, id, published=False):
            sync(shelf.beside.folder / "mark")
        os.unlink(shelf.draft(id))
        shelf.forget(id)

    def marked(self, queue: str, mark: bytes) -> bool:
        with self._queue(queue, durable=False) as shelf:
            return self._is_marked(shelf, mark)

    def _is_marked(self, shelf: Shelf, mark: bytes) -> bool:
        """Whether the queue contains a message that carries this mark for as long as it is there."""
        record = shelf.beside.read_json("mark", digest(mark))
        return bool(record) and record["until"] == FOREVER and self._counts(shelf, digest(mark), record)

    def count_marked(self, queue: str) -> int:
        with self._queue(queue, durable=False) as shelf:
            shelf.refresh()
            records = [(name, shelf.beside.read_json("mark", name)) for name in shelf.beside.names("mark")]
            lasting = [(name, record) for name, record in records if record and record["until"] == FOREVER]
            return sum(record["id"] in shelf.index and self._bears(shelf, record["id"], name) for name, record in lasting)
