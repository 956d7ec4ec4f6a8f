"""Where one queue's messages are stored, and this process's index of them. Each file format fills in the details.

A message is a file. Each of its states is a path, and one rename takes it from one state to the next. A rename whose source is
gone means that another process was faster.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import platform
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from penstock.clock import MachineClock
from penstock.stores.files.records import Hold
from penstock.stores.files.sidecar import TICK, Beside
from penstock.stores.locks import Patience

Stamp = tuple[int, ...]
"""The mtimes (ns) of the folders with a queue's files."""
EXACT = platform.system() == "Linux" and tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 13)
"""Whether every observable change gives a folder a new mtime; older kernels gave all changes within a tick the same one."""
RELIST_SHARE = 10
"""A big folder that others change too is listed again only after this many times the duration of a listing, …"""
DOUBT_SHARE = 50
"""… or this many times, if the only sign of others is that one of our changes could have hidden one of theirs."""
BIG = 0.003
"""A folder is big if listing it takes this many seconds."""
ORPHANED = 3600
"""Seconds after which an unfinished file is certainly left by a dead process."""


def is_open_for_writing(path: str) -> bool | None:
    """Whether any process still has the file open for writing; None if that cannot be known."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # another process moved it
        return False
    try:
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # a process that opens it now must not kill us: SIGIO would
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    except BlockingIOError:
        return True
    except (OSError, AttributeError):  # no leases on this system or file system, or not our file
        return None
    finally:
        os.close(handle)


_unstepped = MachineClock()


def file_age(changed_at: float) -> float:
    """How many seconds ago a file was changed, by its mtime, which came from the wall clock.

    If the wall clock was set after the change, a clock without steps gives the right answer; if before, the wall clock does.
    The right one does not put the change into the future; if neither does, it is the one by which the file is younger."""
    ages = [now - changed_at for now in (time.time(), _unstepped() / 1_000_000)]
    return min((age for age in ages if age >= 0), default=0)


def is_orphaned(path: str) -> bool:
    """Whether an unfinished file is so old, by the file system's clock, that nobody can be about to finish it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    age = file_age(max(status.st_ctime, status.st_mtime))
    return age > ORPHANED and not is_open_for_writing(path)


class Brief(NamedTuple):
    """A message that is received and settled in one batch. Nothing is recorded; it stays ready until it is removed."""

    hold: Hold
    before: Hold | None
    alone: bool
    """It has no sidecar files."""


class Shelf(ABC):
    """Where one queue's messages are stored. ``hidden`` is the instant until which a message is hidden, 0 if it is ready."""

    def __init__(self, root: Path, queue: str, folder: Path, *others: Path, patience: Patience | None = None) -> None:
        """``folder`` exists as long as the queue does; names may also be in others, which all queues share."""
        self.root = root
        self.folder = folder
        self._at = os.fspath(folder)
        self._watched = tuple([os.fspath(path) for path in (folder, *others)])
        self.queue = queue
        self.born: str | None = None
        self.brief: dict[str, Brief] = {}
        self.beside = Beside(root, queue, patience)
        self.index: dict[str, int] = {}
        self.foreign: list[str] = []
        """Names that `scan` found and that are not messages."""
        self._ready: list[tuple[int, str]] = []
        self._hidden: list[tuple[int, str]] = []
        self._stamp: Stamp | None = None
        self._doubtful = False  # one of our changes may have hidden another process's
        self._listed_at = self._took = 0.0
        self._changing = False

    def is_there(self) -> bool:
        return os.path.isdir(self._at)

    def hold(self, id: str) -> Hold | None:
        """The record of a received message."""
        brief = self.brief.get(id)
        return brief.hold if brief else self.beside.hold(id)

    def set_hold(self, id: str, hold: Hold, *, durable: bool = False) -> None:
        self.brief.pop(id, None)
        self.beside.set_hold(id, hold, durable=durable)

    def forget(self, id: str) -> None:
        """Remove the sidecar files of a message that is gone."""
        brief = self.brief.pop(id, None)
        if not brief or not brief.alone:
            self.beside.forget(id)

    def stamp(self, folders: tuple[str, ...] | None = None) -> Stamp:
        """A value that changes whenever a name changes, in one of these folders or in any."""
        folders = self._watched if folders is None else folders
        if len(folders) == 1:
            return (os.stat(folders[0]).st_mtime_ns,)
        return tuple([os.stat(folder).st_mtime_ns for folder in folders])

    @abstractmethod
    def scan(self) -> Iterable[tuple[str, int]]:
        """Every message: its id, and until when it is hidden. All other names are added to ``foreign``."""

    @abstractmethod
    def path(self, id: str, hidden: int) -> str: ...

    def places(self, id: str, hidden: int) -> list[str]:
        """The possible paths of a message that has just been published."""
        return [self.path(id, hidden)]

    @abstractmethod
    def draft(self, id: str) -> str:
        """The path where a message is written before it is published."""

    def is_draft(self, id: str) -> bool:
        """Whether it is still being written, or was when its sender died. (A disk error is raised.)"""
        try:
            os.stat(self.draft(id))
        except FileNotFoundError:
            return False
        return True

    @abstractmethod
    def drafts(self) -> Iterable[str]:
        """All drafts, including those of senders that died."""

    def writable(self, instant: int) -> int:
        """The instant, rounded as the format stores it."""
        return instant

    @abstractmethod
    def rename(self, source: str, id: str, hidden: int) -> None:
        """Make a message ready (0) or hidden."""

    def publish(self, id: str, hidden: int) -> None:
        """Make a draft visible."""
        self.rename(self.draft(id), id, hidden)

    @abstractmethod
    def remove(self, path: str, id: str) -> None: ...

    @abstractmethod
    def take_ids(self, count: int, now: int) -> list[str]:
        """Reserve ids, under the lock. No draft with any of them may exist yet."""

    def reserving(self) -> Changing:
        """Hold the queue's lock while ids are taken and drafts are made. It is released, or taken again, soon after."""
        return Changing(self, self._watched[:1], pause=True)

    def check_drafts(self, ids: Collection[str]) -> None:  # noqa: B027
        """After the drafts are made, still under the lock: raises `FileExistsError` if another program has one of these ids."""

    def seal(self, id: str, hidden: int) -> int:  # noqa: ARG002
        """A value that distinguishes our hiding of a message from another program's; 0 if its path does."""
        return 0

    @abstractmethod
    def number(self, id: str) -> int:
        """The id as a number, in the order of delivery; 0 if it is not an id."""

    undated: int = 0
    """Numbers below this come from ids without a sending time."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The folders to sync so that all name changes since the last call become durable."""

    def sent_at(self, id: str, status: os.stat_result) -> int:  # noqa: ARG002
        """When a message without a sidecar record was sent."""
        return status.st_mtime_ns // 1000

    def refresh(self, *, eager: bool = True, stamp: Stamp | None = None) -> None:
        """List the folder again if someone else changed it. ``stamp`` is its current stamp, if known.

        Unless ``eager``, a big folder is not listed all the time while there is something to claim."""
        stamp = stamp or self.stamp()
        known = stamp == self._stamp
        if known and not self._doubtful:
            return
        begun = time.monotonic()
        if self._stamp and begun < self._listed_at + self._pause(known, eager):
            return
        self._fill(self.scan())
        self._listed_at = time.monotonic()
        self._took = self._listed_at - begun
        self._stamp = stamp
        self._doubtful = not (EXACT or time.time_ns() - max(stamp) > TICK)

    def _pause(self, known: bool, eager: bool) -> float:
        """How long after a listing not to list again."""
        if not eager and self.first_ready() is not None:
            return max(1.0, self._took * DOUBT_SHARE) if known else self._took * RELIST_SHARE if self._took > BIG else 0
        return self._took * DOUBT_SHARE if known and self._took > BIG else 0

    def _fill(self, found: Iterable[tuple[str, int]]) -> None:
        self.foreign = []
        self.index = dict(found)
        self._ready = [(self.number(id), id) for id, hidden in self.index.items() if not hidden]
        self._hidden = [(hidden, id) for id, hidden in self.index.items() if hidden]
        heapq.heapify(self._ready)
        heapq.heapify(self._hidden)

    def check_picture(self, *, looked: bool) -> None:
        """After a failed batch: list the folder again if the batch was interrupted while it changed our index.

        ``looked``: messages were left out of the index for a while, without the lock."""
        if self._changing or looked:
            self._stamp = None
            self._changing = False

    def changing(self, *, hidden: bool = True) -> Changing:
        """Hold the queue's lock. Changes reported with `note` in the meantime keep our index of the folder right.

        Not ``hidden``: only names of ready messages will change."""
        return Changing(self, self._watched if hidden else self._watched[:1])

    def begin(self, stamp: Stamp) -> None:  # noqa: B027
        """The lock was taken. The format may use its memo."""

    def end(self, stamp: Stamp) -> None:  # noqa: B027
        """All went well, and the lock is about to be released."""

    def arrive(self, id: str) -> None:  # noqa: B027
        """A message of another queue was moved here with its id, which no send may take from now on."""

    def note(self, id: str, hidden: int | None) -> None:
        """Record that we put a message there, or (None) removed it."""
        if hidden is None:
            self.index.pop(id, None)
            return
        self.index[id] = hidden
        if hidden:
            heapq.heappush(self._hidden, (hidden, id))
        else:
            heapq.heappush(self._ready, (self.number(id), id))

    def choose_ready(self) -> str | None:
        """The message to claim next."""
        return self.first_ready()

    def ready(self, limit: int) -> list[str]:
        """The oldest ready messages."""
        self.first_ready()
        return [id for _, id in heapq.nsmallest(limit, self._ready) if self.index.get(id) == 0]

    def first_ready(self) -> str | None:
        while self._ready and self.index.get(self._ready[0][1]) != 0:
            heapq.heappop(self._ready)
        return self._ready[0][1] if self._ready else None

    def first_hidden(self) -> tuple[int, str] | None:
        while self._hidden and self.index.get(self._hidden[0][1]) != self._hidden[0][0]:
            heapq.heappop(self._hidden)
        return self._hidden[0] if self._hidden else None

    def requeue(self, now: int) -> None:
        """Make every message ready whose time has come, as each consumer does before it consumes."""
        while (first := self.first_hidden()) and first[0] <= now:
            hidden, id = first
            try:
                self.rename(self.path(id, hidden), id, 0)
                self.note(id, 0)
            except FileNotFoundError:  # another process was first
                self.note(id, None)

    def find(self, id: str, hold: Hold | None = None) -> int | None:
        """Until when a message is hidden that another process may have renamed; None if it is gone."""
        if not self.number(id):
            return None
        for hidden in (self.index.get(id), hold and hold.hidden_until, 0):
            if hidden is not None and os.path.exists(self.path(id, hidden)):
                return hidden
        self._stamp = None
        self.refresh()
        return self.index.get(id)


class Changing:
    """The context of `Shelf.changing`. A class is faster than a generator, and every send enters two."""

    __slots__ = ("_folders", "_give", "_known", "_shelf", "before")

    def __init__(self, shelf: Shelf, folders: tuple[str, ...], *, pause: bool = False) -> None:
        """Names change only in these folders, which are the first of those watched."""
        self._shelf = shelf
        self._folders = folders
        self._give = shelf.beside.pause if pause else shelf.beside.give

    def __enter__(self) -> Changing:
        shelf = self._shelf
        shelf.beside.take()
        try:
            self.before = shelf.stamp(self._folders)
            self._known = shelf._stamp is not None and shelf._stamp[: len(self.before)] == self.before
            shelf.begin(self.before)
            shelf._changing = True
        except BaseException:
            shelf.beside.give()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        shelf, before = self._shelf, self.before
        try:
            if error is None:
                after = shelf.stamp(self._folders)
                shelf.end(after)
                count, stamp = len(before), shelf._stamp
                if after != before and stamp is not None and (self._known or stamp[:count] == before):
                    shelf._stamp = after + stamp[count:]
                    shelf._doubtful = True
                shelf._changing = False
        finally:
            self._give()
