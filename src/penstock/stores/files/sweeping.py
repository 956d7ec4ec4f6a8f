"""Sweeping: removing old history and marks, and what dead processes left behind, a part at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from penstock.file_times import is_orphaned
from penstock.stores.files.folder import Folder
from penstock.stores.files.history import FileHistory
from penstock.stores.files.holding import HeldFiles
from penstock.stores.files.marks import FileMarks
from penstock.stores.files.readers import FileReaders
from penstock.stores.files.records import Extra

SLICE = 200
"""How many records one slice looks at."""
DRAFT = "draft"
Ask = Callable[[], bool]


class Sweeping:
    """One pass after another through the records of one queue. Owns how far the current pass has come.

    Each record is judged by what it contains when its turn comes, so that a pass may last, and others change what they like
    between two slices."""

    def __init__(
        self,
        folder: Folder,
        holding: HeldFiles,
        marks: FileMarks,
        history: FileHistory,
        readers: FileReaders,
        is_inserting: Ask,
    ) -> None:
        """``is_inserting``: whether there is a journal with drafts that are yet to be published."""
        self._folder = folder
        self._sidecar = folder.sidecar
        self._holding = holding
        self._marks = marks
        self._history = history
        self._readers = readers
        self._is_inserting = is_inserting
        self._records: Iterator[tuple[str, str]] | None = None

    def slice(self, now: int) -> bool:
        """Look at some records, under the queue's lock. Returns whether there are more."""
        records, self._records = self._records, None  # if this fails, the next slice begins a new pass
        if records is None:
            records = self._begin(now)
        part = list(islice(records, SLICE))
        keep = self._is_inserting() if part else True
        for kind, name in part:
            self._sweep(kind, name, now, keep)
        if len(part) < SLICE:
            return False
        self._records = records
        return True

    def stop(self) -> None:
        """End the pass, which has a folder open."""
        self._records = None

    def _begin(self, now: int) -> Iterator[tuple[str, str]]:
        self._folder.refresh()
        self._readers.finish(now)
        if self._sidecar.damaged():
            self._holding.free_unclaimed(set(self._readers.all_receipts()), now)
        return self._list()

    def _list(self) -> Iterator[tuple[str, str]]:
        """The kind and name of each record; the drafts first, which take their heads and marks with them."""
        for path in self._folder.layout.drafts():
            yield DRAFT, path
        for kind in ("settled", "mark", "head", "held"):
            with os.scandir(self._sidecar.folder / kind) as entries:
                for entry in entries:
                    yield kind, entry.name

    def _sweep(self, kind: str, name: str, now: int, keep: bool) -> None:
        """``keep`` what a dead process may have left."""
        path = f"{self._sidecar.folder}/{kind}/{name}"
        if kind == DRAFT:
            if not keep and is_orphaned(name):
                self._drop_draft(name)
        elif name.endswith("~"):
            if not keep and is_orphaned(path):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        elif kind == "settled":
            if self._history.is_ours(name):
                self._history.sweep(name, now)
        elif kind == "mark":
            self._marks.sweep(name, now)
        elif not keep and name not in self._folder.index and is_orphaned(path) and self._is_gone(name):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _drop_draft(self, path: str) -> None:
        id = os.path.basename(path).removesuffix(".new").rpartition(":")[2]
        with suppress(FileNotFoundError):
            self._marks.drop_draft(id, Extra.unpack(self._sidecar.read_json("head", id)).mark)

    def _is_gone(self, id: str) -> bool:
        """Whether there is neither a message nor a draft with this id."""
        self._folder.refresh()  # another process may have sent it since this pass began
        return id not in self._folder.index and not self._folder.is_draft(id)
