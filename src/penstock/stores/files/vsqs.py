"""VSQS directories: a folder per queue, a file per message, with its state in its name.

    1415776871123.new             being written
    1415776871123                 ready: the oldest number goes first
    1415776871123.1415776879654   hidden (claimed, or delayed) until this millisecond

A number is the millisecond of creation, or the next free one. Other VSQS programs can work on the same folder. The file's mtime
is the instant of sending.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from penstock.file_times import wall_millisecond
from penstock.message import FOREVER
from penstock.patience import Patience
from penstock.stores.disk import rename_new
from penstock.stores.files.layout import Format, Layout, Stamp
from penstock.stores.files.sidecar import Sidecar
from penstock.stores.files.store import FileStore
from penstock.stores.ids import Uuids

NEVER = FOREVER // 1000
EXPIRY = re.compile(r"([0-9]{1,17})(?:\.0*([0-9]*))?")
MOST = 10**17 - 1
"""The biggest number of a message."""
AHEAD = 2
"""How many milliseconds our numbers are ahead of the clock, …"""
AHEAD_SHARE = 16
"""… plus one for this many drafts, which is the longest that creating them takes."""


def milliseconds(instant: int) -> int:
    """Whole milliseconds, rounded up: nothing is shown before its time."""
    return NEVER if instant >= FOREVER else -(-instant // 1000)


def from_milliseconds(millisecond: int) -> int:
    return FOREVER if millisecond >= NEVER else millisecond * 1000


class VsqsLayout(Layout):
    def __init__(self, folder: Path, sidecar: Sidecar) -> None:
        self.folder = folder
        self._at = os.fspath(folder)
        self.watched = self.drafts_in = (self._at,)
        self._sidecar = sidecar

    def scan(self, foreign: list[str]) -> Iterator[tuple[str, int]]:
        unusual: list[tuple[str, str]] = []
        names = os.listdir(self._at)
        for name in names:
            id, dot, extension = name.partition(".")
            if not self.number(id):
                foreign.append(f"{self._at}/{name}")
            elif not dot:
                yield id, 0
            elif self.number(extension) and int(extension) <= NEVER:
                yield id, from_milliseconds(int(extension))
            elif extension != "new":
                unusual.append((id, extension))
        if unusual:
            yield from self._spell(unusual, Counter(name.partition(".")[0] for name in names), foreign)

    def _spell(self, unusual: list[tuple[str, str]], files: Counter[str], foreign: list[str]) -> Iterator[tuple[str, int]]:
        """Messages whose expiry is spelled unusually, for example with a fraction: rename them to the usual spelling."""
        for id, extension in unusual:
            name, number = f"{self._at}/{id}.{extension}", EXPIRY.fullmatch(extension)
            if number is None or files[id] > 1:  # another file has the same number
                foreign.append(name)
                continue
            hidden = from_milliseconds(min(int(number[1]) + bool(number[2]), NEVER))
            try:
                rename_new(name, self.path(id, hidden))
                yield id, hidden
            except FileNotFoundError:  # another process was first
                continue
            except OSError:  # the disk is not writable
                foreign.append(name)

    def path(self, id: str, hidden: int) -> str:
        return f"{self._at}/{id}.{milliseconds(hidden)}" if hidden else f"{self._at}/{id}"

    def places(self, id: str, hidden: int) -> list[str]:
        return [self.path(id, hidden)]

    def locate(self, id: str, hidden: int) -> int:
        os.stat(self.path(id, hidden))
        return hidden

    def draft(self, id: str) -> str:
        return f"{self._at}/{id}.new"

    def drafts(self) -> list[str]:
        return [f"{self._at}/{name}" for name in os.listdir(self._at) if name.endswith(".new")]

    def writable(self, instant: int) -> int:
        return from_milliseconds(milliseconds(instant))

    def publish(self, id: str, hidden: int) -> None:
        """Never over another program's message with the same number, wherever that came from: raises `FileExistsError`."""
        rename_new(self.draft(id), self.path(id, hidden))

    def rename(self, source: str, id: str, hidden: int) -> None:
        os.rename(source, self.path(id, hidden))

    def remove(self, path: str, id: str) -> None:  # noqa: ARG002
        os.unlink(path)

    def begin(self, stamp: Stamp) -> None:
        self._memo = self._last, known = self._sidecar.recall(MOST)
        self._ours = known == stamp[0]

    def end(self, stamp: Stamp) -> None:
        memo = self._last, stamp[0] if self._ours else self._memo[1]
        if memo != self._memo:
            self._sidecar.remember(*memo)

    def arrive(self, id: str) -> None:
        self._last = max(self._last, self.number(id))

    def take_ids(self, count: int, now: int) -> list[str]:
        """Above any number in use, and later than now: no other program can have used such a number yet.

        VSQS lists the folder after each create, to find the same number in another state. Here a listing is needed only if
        someone changed the folder without holding the lock, or if the clock has caught up with our numbers."""
        if not self._ours:
            self._last = max([self._last, *(self.number(name.partition(".")[0]) for name in os.listdir(self.folder))])
            self._ours = True
        first = max(self._last + 1, now // 1000 + AHEAD + count // AHEAD_SHARE)
        self._last = first + count - 1
        return [str(number) for number in range(first, first + count)]

    def check_drafts(self, ids: Collection[str]) -> None:
        if ids and wall_millisecond() >= min(map(int, ids)):
            mine = {f"{id}.new" for id in ids}
            taken = {name for name in os.listdir(self.folder) if name.partition(".")[0] in ids} - mine
            if taken:
                raise FileExistsError(errno.EEXIST, "another program has the same number", str(self.folder / min(taken)))

    def number(self, id: str) -> int:
        return number_of(id) or 0

    def touched(self) -> list[str]:
        return [self._at]

    def sent_at(self, id: str, status: os.stat_result) -> int:  # noqa: ARG002
        return status.st_mtime_ns // 1000


def number_of(id: str) -> int | None:
    return int(id) if id.isdecimal() and id.isascii() and len(id) < 18 and id[0] != "0" else None


class VsqsUuids(Uuids):
    """Computed from queue and number, without a table (RFC 9562, version 8)."""

    def of(self, queue: str, id: str) -> str:
        salt = uuid.uuid5(uuid.NAMESPACE_OID, queue).int >> 64
        return str(uuid.UUID(int=(salt & ~0xF000 | 0x8000) << 64 | 1 << 63 | int(id)))

    def number(self, queue: str, id: str) -> int | None:  # noqa: ARG002
        return number_of(id)

    def id_of(self, queue: str, given: str) -> str | None:
        try:
            id = str(uuid.UUID(given).int & (1 << 62) - 1)
        except ValueError:
            return None
        return id if self.of(queue, id) == given.lower() else None


class Vsqs(Format):
    def __init__(self, root: Path) -> None:
        self.queues = root

    def layout(self, queue: str, sidecar: Sidecar) -> VsqsLayout:
        return VsqsLayout(self.queues / queue, sidecar)

    def uuids(self, ids: Callable[[str], list[str]]) -> VsqsUuids:  # noqa: ARG002
        return VsqsUuids()


def open_vsqs(root: str | Path, patience: Patience) -> FileStore:
    """``patience``: how long to wait for other processes that hold a lock."""
    return FileStore(root, Vsqs(Path(root)), patience)
