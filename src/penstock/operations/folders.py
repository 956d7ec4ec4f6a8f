"""A copy of a store of files at one instant, while others use the store.

Everything is copied first without any lock, as files do not change once they have their name (records of received messages
do, and are told by their mtime). What came meanwhile is copied in further rounds. Then the locks of all writers and queues
are taken, in the order in which everybody takes them, and everything is listed: what is there is known already, but for a few
files. So the locks are held for a listing and not for a copy.

Links would be faster than copies. But making or removing one changes the ctime of a file, by which the spool tells whose
timer a file has.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from penstock.errors import StoreBusy
from penstock.file_times import is_recent
from penstock.message import next_delivery
from penstock.operations.backups import PIECE, Content
from penstock.patience import Patience
from penstock.stores.disk import PRIVATE
from penstock.stores.files.layout import Layout, Stamp, stamp_of
from penstock.stores.files.outbox import LOCK, WRITERS
from penstock.stores.files.records import Received
from penstock.stores.files.sidecar import FOLDER, Sidecar
from penstock.stores.files.spool import NEVER_AT, Spool, SpoolLayout
from penstock.stores.files.store import FileStore
from penstock.stores.files.vsqs import MOST, Vsqs
from penstock.stores.locks import FileLock, Locks

ROUNDS, FEW = 5, 500
"""How often files are copied without locks, and with how few new ones that ends."""
LEFT_OUT = 10_000
"""How many numbers a restored VSQS store leaves out. They are milliseconds, and may be ahead of the clock where many messages
were sent at once."""
TRIES = 10
"""How often everything is listed, while other programs, which do not know our locks, change names."""


class Listed(NamedTuple):
    """A file of the store. A message that is renamed keeps all but its path."""

    path: str
    inode: int
    size: int
    mtime_ns: int
    id: str

    @property
    def key(self) -> tuple[int, int, int, str]:
        return self[1:]


def copy(store: FileStore, target: Path) -> tuple[list[str], list[Content]]:
    """Copy everything into a new folder. Returns the queues, and the files with paths relative to the folder."""
    pool = target.with_name(f"{target.name}~")
    for folder in (target, pool):
        folder.mkdir()
    copying = Copying(store.root, pool)
    for _ in range(ROUNDS):
        if copying.look_ahead() < FEW:
            break
    with ExitStack() as locks:
        _lock_all(store, locks)
        listed, names = copying.at_once(store), store.names()
    contents = []
    for file in listed:
        number, sha256 = copying.known[file.key]
        place = target / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(pool / str(number), place)
        os.utime(place, ns=(file.mtime_ns, file.mtime_ns))
        contents.append(Content(file.path, file.size, file.mtime_ns, sha256))
    for left in pool.iterdir():  # what was deleted meanwhile
        left.unlink()
    pool.rmdir()
    return names, contents


class Copying:
    """Owns the copies that were made so far, each under a number."""

    def __init__(self, root: Path, pool: Path) -> None:
        self._root = root
        self._pool = pool
        self._last = 0
        self.known: dict[tuple[int, int, int, str], tuple[int, str]] = {}

    def look_ahead(self) -> int:
        """Copy what is new and not just being changed. Returns how many files."""
        return sum(
            self._copy(file) for file in _list(self._root) if file.key not in self.known and not is_recent(file.mtime_ns)
        )

    def at_once(self, store: FileStore) -> list[Listed]:
        """Everything at one instant. Needs the locks."""
        for _ in range(TRIES):
            before = _stamps(store)
            listed = list(_list(self._root))
            if all(file.key in self.known or self._copy(file) for file in listed) and _stamps(store) == before:
                return listed
        raise StoreBusy(f"{store}: other programs, which know no locks, change it all the time; stop them for the backup")

    def _copy(self, file: Listed) -> bool:
        """False if the file is gone, or is another by now."""
        digest = hashlib.sha256()
        try:
            with open(f"{self._root}/{file.path}", "rb") as source:
                status = os.fstat(source.fileno())
                if (status.st_ino, status.st_size, status.st_mtime_ns) != file[1:4]:
                    return False
                handle = os.open(f"{self._pool}/{self._last + 1}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
                with open(handle, "wb") as taken:
                    while piece := source.read(PIECE):
                        digest.update(piece)
                        taken.write(piece)
        except FileNotFoundError:
            return False
        self._last += 1
        self.known[file.key] = self._last, digest.hexdigest()
        return True


def _list(root: Path, within: str = "") -> Iterator[Listed]:
    """The sidecar files come last: those of a message are there before it is."""
    try:
        entries = sorted(os.scandir(f"{root}/{within}"), key=lambda entry: (entry.name == FOLDER, entry.name))
    except FileNotFoundError:
        return
    for entry in entries:
        path = f"{within}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if not _is_left_out(path.split("/"), root):
                yield from _list(root, f"{path}/")
        elif entry.is_file(follow_symlinks=False) and entry.name[-1] != "~":
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            id = entry.name.rpartition(":")[2].partition(".")[0]
            yield Listed(path, status.st_ino, status.st_size, status.st_mtime_ns, id)


def _is_left_out(parts: list[str], root: Path) -> bool:
    """Whether a copy has nothing of a folder: what a store makes anew, and what is being removed."""
    match parts:
        case [".penstock", ".reserve" | ".clock"] | [".penstock", _, "gone"]:
            return True
    return parts == ["remove"] and (root / "delay").is_dir()  # of a spool; elsewhere it is a queue


def _stamps(store: FileStore) -> list[Stamp]:
    return [stamp_of(store.queue(name).folder.layout.watched) for name in store.names()]


def _lock_all(store: FileStore, locks: ExitStack) -> None:
    """The writers first: one that publishes takes locks of queues."""
    waiting = Locks(Patience())
    for place in sorted((store.root / FOLDER / WRITERS).glob(f"*/{LOCK}")):
        lock = FileLock(str(place), f"writer {place.parent.name!r} in {store}", waiting)
        lock.open()
        locks.callback(lock.give)
        lock.take()
    for name in store.names():
        sidecar = Sidecar(store.root, name, waiting, store.on_damage)
        locks.callback(sidecar.give)
        sidecar.take()


def make_own(kind: str, root: Path, queues: Sequence[str], now: int, replaced: Path | None) -> None:
    """Make a copy of a store a store of its own, in which no receipt from before is valid; see `penstock.stores.sql.whole`.

    Nobody uses it yet. In a spool, the timers of hidden files are recognised by their ctime, which a copy does not have."""
    format = Spool(root) if kind == "spool" else Vsqs(root)
    format.prepare()
    for name in queues:
        (format.queues / name).mkdir(exist_ok=True)  # an empty queue
        sidecar = _sidecar(root, name)
        if (sidecar.folder / "held").is_dir():
            Renewing(format.layout(name, sidecar), sidecar, now).all()
        if kind == "vsqs":
            known = [_last_id(sidecar), now // 1000, 0 if replaced is None else _last_id(_sidecar(replaced, name))]
            sidecar.take()
            sidecar.remember(max(known) + LEFT_OUT, 0)
            sidecar.give()


def _sidecar(root: Path, name: str) -> Sidecar:
    return Sidecar(root, name, Locks(Patience()), lambda _: None)


def _last_id(sidecar: Sidecar) -> int:
    """The last number that VSQS has given out in a queue."""
    sidecar.take()
    try:
        return sidecar.recall(MOST)[0]
    finally:
        sidecar.give()


class Renewing:
    """The records of the messages of one queue that were received, or are delayed in a spool."""

    def __init__(self, layout: Layout, sidecar: Sidecar, now: int) -> None:
        self._layout = layout
        self._sidecar = sidecar
        self._now = now

    def all(self) -> None:
        claims = [
            (place.parent.name, record)
            for place in (self._sidecar.folder / "reader").glob("*/*")
            if place.name.isdigit() and (record := self._sidecar.read_json("reader", place.parent.name, place.name))
        ]
        named = {(id, delivery) for _, record in claims for id, delivery in record["receipts"]}
        renewed: dict[tuple[str, int], int] = {}
        for id in self._sidecar.names("held"):
            received = self._sidecar.received(id)
            if received is not None:
                renewed[id, received.delivery] = self._renew(id, received, (id, received.delivery) in named)
        for folder, record in claims:
            receipts = [[id, renewed.get((id, delivery), delivery)] for id, delivery in record["receipts"]]
            self._sidecar.write_json(record | {"receipts": receipts}, "reader", folder, str(record["epoch"]), durable=False)

    def _renew(self, id: str, received: Received, named: bool) -> int:
        """Returns the delivery that is valid from now on."""
        layout = self._layout
        hidden = next((at for at in (received.hidden_until, received.hidden_before) if at and _is_at(layout, id, at)), 0)
        if received.released == 0:
            received = received._replace(delivery=next_delivery(received.delivery, self._now))
            if not named:
                if hidden:
                    layout.rename(layout.path(id, hidden), id, 0)
                received, hidden = received._replace(released=1, hidden_until=0, hidden_before=0, holder=None), 0
        self._sidecar.write_received(id, received._replace(seal=layout.seal(id, hidden) if hidden else 0))
        return received.delivery


def _is_at(layout: Layout, id: str, hidden: int) -> bool:
    """Whether a file is where our record says, with our timer."""
    try:
        status = os.stat(layout.path(id, hidden))
    except FileNotFoundError:
        return False
    return not isinstance(layout, SpoolLayout) or status.st_mtime_ns // 1000 == min(hidden, NEVER_AT)
