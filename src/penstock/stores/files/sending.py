"""Sending: messages are written as drafts, synced, and then published by a rename."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from penstock.message import OCTETS, Entry, Sent, Settings, micros, weigh
from penstock.stores.disk import is_full, sync, sync_file_system
from penstock.stores.encoding import Head
from penstock.stores.files.marks import FileMarks, MarkRow
from penstock.stores.files.opening import Opening
from penstock.stores.files.records import Extra, Received
from penstock.stores.files.sidecar import FEW

ATTEMPTS = 20
"""How often a sender tries to find numbers that no other program uses."""

Journal = Callable[[list[MarkRow]], None]
"""Called with what is about to be published, so that another process can finish it if we die."""


class FileSending:
    """Adds messages to one queue."""

    def __init__(self, opening: Opening, marks: FileMarks) -> None:
        self._opening = opening
        self._folder = opening.folder
        self._layout = opening.folder.layout
        self._sidecar = opening.folder.sidecar
        self._transactions = opening.transactions
        self._marks = marks

    def insert(
        self, entries: Sequence[Entry], now: int, settings: Settings, journal: Journal | None = None
    ) -> list[Sent] | None:
        entered = self._transactions.patience.now()
        entries = list(entries)
        with self._opening.visit(check=False):
            self._transactions.reserve.admit(sum([weigh(entry) if entry.attributes else len(entry.body) for entry in entries]))
            for attempt in range(ATTEMPTS):
                try:
                    return self._insert(entries, now, settings, entered, journal)
                except OSError as error:
                    if is_full(error):  # reported here, because a send does not use the reserve
                        raise self._transactions.translate(error) from error
                    # Another program may have taken the same number at the same moment: `FileExistsError`.
                    if not isinstance(error, FileExistsError) or attempt + 1 == ATTEMPTS:
                        raise
        return None

    def _insert(
        self, entries: Sequence[Entry], now: int, settings: Settings, entered: float, journal: Journal | None
    ) -> list[Sent] | None:
        begun = False
        fresh: dict[str, Entry] = {}
        drafts: dict[str, int] = {}
        published: dict[str, int] = {}
        try:
            with self._folder.reserving():
                waited = micros(self._transactions.patience.now() - entered)  # for the lock, since `now`
                ids = self._layout.take_ids(len(entries), now + waited)
                answers = self._without_duplicates(entries, iter(ids), now, fresh)
                for id in fresh:
                    drafts[id] = os.open(self._layout.draft(id), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
                self._layout.check_drafts(drafts)
            self._write(fresh, drafts)
            with self._folder.changing(hidden=any(entry.visible_at > now for entry in fresh.values())):
                try:
                    if self._opening.settings() != settings:
                        self._take_back(fresh, drafts, published)
                        return None
                    answers = self._without_late_duplicates(answers, now, fresh, drafts)
                    rows = [MarkRow(id, new.sent_at, new.visible_at, new.mark, new.mark_until) for id, new in fresh.items()]
                    if journal is not None:
                        journal(rows)
                        begun = True
                    self._marks.write(rows)
                    for row in rows:
                        self._publish(row, now, published)
                except BaseException:
                    if not begun:  # what is in the journal will be finished
                        self._take_back(fresh, drafts, published)
                    raise
        except BaseException:
            self._sidecar.give()
            if not begun:
                self._take_back(fresh, drafts, published)
            raise
        self._end_insert(rows)
        return answers

    def finish(self, rows: Sequence[MarkRow], now: int) -> None:
        """Publish what a process that died had in its journal. What is no longer a draft was published before."""
        with self._folder.changing():
            left = [row for row in rows if self._folder.is_draft(row.id)]
            for row in left.copy():
                if row.mark and self._marks.first_with(row.mark, now):  # an equal message was sent since
                    self._marks.drop_draft(row.id, None)
                    left.remove(row)
            self._marks.write(left)
            for row in left:
                with suppress(FileNotFoundError):
                    self._publish(row, now, {})
        self._end_insert(rows)

    def _publish(self, row: MarkRow, now: int, published: dict[str, int]) -> None:
        """Publish a draft, and record in ``published`` where it goes."""
        published[row.id] = hidden = self._layout.writable(row.visible_at) if row.visible_at > now else 0
        self._layout.publish(row.id, hidden)
        self._folder.note(row.id, hidden)
        if hidden and (seal := self._layout.seal(row.id, hidden)):
            self._folder.write_received(row.id, Received(0, 0, row.sent_at, 0, 0, hidden, 1, seal=seal))

    def _end_insert(self, rows: Sequence[MarkRow]) -> None:
        touched = self._layout.touched()
        if not any(row.mark for row in rows):
            self._transactions.dirty.update(touched)
            return
        for folder in touched:
            sync(folder)
        # A draft that reappears after a power cut would void its mark. It must not go before its message is durable.
        self._transactions.dirty.update({self.drafts_folder()}.difference(touched))

    def drafts_folder(self) -> str:
        return os.path.dirname(self._layout.draft("0"))

    def _take_back(self, fresh: dict[str, Entry], drafts: dict[str, int], published: dict[str, int]) -> None:
        """After a failed send: remove all of it, as far as the disk allows. What cannot be removed stays whole."""
        for id, handle in drafts.items():
            if handle >= 0:
                os.close(handle)
            with suppress(OSError):
                if id in published and not self._folder.is_draft(id):
                    self._withdraw(id, published[id], fresh[id].mark)
                else:
                    self._marks.drop_draft(id, fresh[id].mark)
        for lost in (drafts, fresh, published):  # the drafts first: if an interrupt comes here, this is called again
            lost.clear()

    def _withdraw(self, id: str, hidden: int, mark: bytes | None) -> None:
        places = self._layout.places(id, hidden)
        for path in filter(os.path.exists, places):  # nowhere: another program has taken it, so it was sent
            try:
                os.rename(path, self._layout.draft(id))  # so that it is never gone while its mark counts
            except FileNotFoundError:  # the other program was faster
                continue
            except OSError:  # removing a name is easier than making one
                if mark:
                    self._marks.remove(mark, id, published=False)
                os.unlink(path)
                self._folder.forget(id)
            else:
                self._marks.drop_draft(id, mark)
            finally:
                self._folder.note(id, None)

    def _without_duplicates(
        self, entries: Sequence[Entry], ids: Iterator[str], now: int, fresh: dict[str, Entry]
    ) -> list[Sent]:
        """The answer to each entry; those that are not duplicates are added to ``fresh``."""
        answers: list[Sent] = []
        marks: dict[bytes, str] = {}
        for entry in entries:
            first = entry.mark and (marks.get(entry.mark) or self._marks.first_with(entry.mark, now))
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
        self, answers: list[Sent], now: int, fresh: dict[str, Entry], drafts: dict[str, int]
    ) -> list[Sent]:
        """Another process may have sent an equal message since `_without_duplicates`, while we wrote ours."""
        late = {id: first for id, entry in fresh.items() if entry.mark and (first := self._marks.first_with(entry.mark, now))}
        for id in late:
            self._marks.drop_draft(id, None)
            del fresh[id], drafts[id]
        return [Sent(late[sent.id], True) if sent.id in late else sent for sent in answers] if late else answers

    def _write(self, fresh: dict[str, Entry], drafts: dict[str, int]) -> None:
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
                    Head(entry.content_type, entry.attributes, entry.visibility, retry=entry.retry),
                    sent_at=entry.sent_at if entry.visible_at != entry.sent_at else None,
                    visible_at=entry.visible_at if entry.visible_at != entry.sent_at else None,
                    deadline_at=entry.deadline_at,
                    group=entry.group,
                    mark=entry.mark,
                )
                self._sidecar.write_json(extra.pack(), "head", id, durable=few)
        if not few:
            sync_file_system(self._transactions.root)
        elif any(entry.mark for entry in fresh.values()):
            sync(self.drafts_folder())  # a mark on the disk without its draft would count


def _is_plain(entry: Entry) -> bool:
    """Whether the entry needs no sidecar files."""
    plain = entry[1:3] == (OCTETS, {}) and entry.visible_at == entry.sent_at
    return plain and entry[6:10] == (None, None, None, None) and entry.retry is None
