"""The MQ-Core spool: a message is written once and unlinked once; everything else is a rename.

    new/QUEUE:ID       written, not yet delivered                  ──► queues/QUEUE/ID
    queues/QUEUE/ID    ready                                       ──► delay/QUEUE:ID    fetched, or delayed
    delay/QUEUE:ID     hidden until its mtime, which is the timer and survives a restart   ──► queues/QUEUE/ID
    remove/QUEUE:ID    removed from any of the three, in this order; unlinked some time later

An id is a time-ordered UUID (RFC 9562, version 7); other programs may use other ids. Any process that finds a file whose time
has come may move it on: this store does so before it fetches, `penstock mover` and `penstock reaper` do it all the time, and
other MQ-Core programs may as well. This store writes messages as drafts elsewhere, so that it never has an unfinished file in
new/; once a message is complete and on the disk, it goes through new/ to its queue at once.

Another program that fetches sets no timer that we can read: the file keeps an old mtime, perhaps a former timer of ours. Such a
file stays hidden for the queue's visibility from when it was moved. We recognise our own by their ctime, which their sidecar
record has.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from penstock.file_times import EXACT, file_age, is_open_for_writing, is_recent
from penstock.message import FOREVER, Settings, micros
from penstock.patience import Patience
from penstock.stores.disk import rename_new
from penstock.stores.encoding import unpack_settings
from penstock.stores.files.layout import Format, Layout, Stamp, stamp_of
from penstock.stores.files.sidecar import FOLDER, Sidecar
from penstock.stores.files.store import FileStore
from penstock.stores.ids import Uuids
from penstock.stores.locks import Locks

PARTS = ("new", "queues", "delay", "remove")
MOST = 2**60 - 2**32
"""The biggest number that leaves room for more: 48 bits of time, 12 of a fraction."""
NEVER_AT = 2**33 * 1_000_000
"""The instant (in the year 2242) that stands for never: file systems keep no later ones."""
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
UUID_1 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
ANY_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SERVED = re.compile(r"(?!\.)[!-.0-~]{1,200}(?<!~)")
"""Ids that are delivered. Others cannot be put in an HTTP header or a line of text; and by custom, a name that begins with a
dot or ends in ~ is an unfinished file."""
MOST_NAME = 255
"""The longest possible file name."""
UNDATED = 1 << 51
"""Numbers below this come from ids without a time: as times, they would be before 2004."""
GREGORIAN = 0x01B21DD213814000
"""The year 1970 in UUIDs of version 1, in units of 100 ns."""
STILL = 5
"""Seconds without a write after which a file in new/ counts as complete, if a lease cannot tell."""


def read_timer(root: Path, id: str, sidecar: Sidecar) -> int:
    """Until when a file in delay/ stays there."""
    received = sidecar.received(id)
    status = os.stat(f"{root}/delay/{sidecar.queue}:{id}")
    instant = status.st_mtime_ns // 1000
    if instant >= NEVER_AT:
        return FOREVER
    if received is not None and received.seal == status.st_ctime_ns:
        return instant
    record = sidecar.settings()
    visibility = (unpack_settings(record["settings"]) if record else Settings()).visibility
    return max(instant, status.st_ctime_ns // 1000 + micros(visibility))


def set_timer(path: str, instant: int) -> None:
    nanoseconds = min(instant, NEVER_AT) * 1000
    os.utime(path, ns=(nanoseconds, nanoseconds))


def is_written(path: str) -> bool:
    """Whether no process has this file of new/ open for writing any more."""
    writing = is_open_for_writing(path)
    if writing is not None:
        return not writing
    with suppress(FileNotFoundError):
        return file_age(os.stat(path).st_ctime) > STILL
    return False


def deliver_new(root: Path, queue: str | None = None, foreign: list[str] | None = None) -> bool:
    """Move complete files to their queue. Returns whether any are still being written.

    What has to stay is added to ``foreign``: what is not a file, and what has the id of an existing message."""
    waiting = False
    stays = [] if foreign is None else foreign
    for entry in os.scandir(root / "new"):
        name, colon, id = entry.name.partition(":")
        if not colon or queue not in (None, name) or not (root / "queues" / name).is_dir():
            continue
        if id in ("", ".", "..") or not entry.is_file() or os.path.exists(f"{root}/delay/{entry.name}"):
            stays.append(entry.path)
        elif is_written(entry.path):
            try:
                rename_new(entry.path, f"{root}/queues/{name}/{id}")
            except FileNotFoundError:  # another process was first
                continue
            except FileExistsError:
                stays.append(entry.path)
        else:
            waiting = True
    return waiting


def deliver_delayed(root: Path, now: int, on_damage: Callable[[str], object]) -> int | None:
    """Move files whose delay is over back to their queue. Returns when the next is due."""
    due = None
    for entry in os.scandir(root / "delay"):
        name, colon, id = entry.name.partition(":")
        if not colon or id in ("", ".", "..") or not (root / "queues" / name).is_dir():
            continue
        with suppress(FileNotFoundError):  # another process was first
            instant = read_timer(root, id, Sidecar(root, name, Locks(Patience()), on_damage))
            if instant <= now:
                os.rename(entry.path, root / "queues" / name / id)
            elif instant < FOREVER:
                due = instant if due is None else min(due, instant)
    return due


def destroy_removed(root: Path) -> int:
    """Unlink removed files. Returns how many."""
    gone = 0
    for entry in os.scandir(root / "remove"):
        with suppress(FileNotFoundError):
            os.unlink(entry.path)
            gone += 1
    return gone


class SpoolLayout(Layout):
    undated = UNDATED

    def __init__(self, root: Path, queue: str, sidecar: Sidecar, peers: int) -> None:
        self.folder = root / "queues" / queue
        self.peers = peers
        self._at, self._new, self._delay = os.fspath(self.folder), f"{root}/new", f"{root}/delay"
        self.watched, self.drafts_in = (self._at, self._new, self._delay), ()
        self._drafts, self._remove = f"{root}/{FOLDER}/.drafts", f"{root}/remove"
        self._root = root
        self._queue = queue
        self._sidecar = sidecar
        self._prefix = len(os.fsencode(queue)) + 1
        self._passed = 0
        self._touched: set[str] = set()

    def scan(self, foreign: list[str]) -> Iterator[tuple[str, int]]:
        self.unfinished = deliver_new(self._root, self._queue, foreign)
        for entry in os.scandir(self._delay):
            name, _, id = entry.name.partition(":")
            if name == self._queue and self.number(id):
                with suppress(FileNotFoundError):
                    yield id, self.locate(id, 1)
            elif name == self._queue:
                foreign.append(entry.path)
        for id in os.listdir(self._at):
            if self.number(id):
                yield id, 0
            else:
                foreign.append(f"{self._at}/{id}")

    def path(self, id: str, hidden: int) -> str:
        return f"{self._delay}/{self._queue}:{id}" if hidden else f"{self._at}/{id}"

    def places(self, id: str, hidden: int) -> list[str]:
        return [self.path(id, hidden), f"{self._new}/{self._queue}:{id}"]

    def locate(self, id: str, hidden: int) -> int:
        if hidden:
            return read_timer(self._root, id, self._sidecar)
        os.stat(f"{self._at}/{id}")
        return 0

    def draft(self, id: str) -> str:
        return f"{self._drafts}/{self._queue}:{id}"

    def drafts(self) -> list[str]:
        return [f"{self._drafts}/{name}" for name in os.listdir(self._drafts) if name.partition(":")[0] == self._queue]

    def sent_at(self, id: str, status: os.stat_result) -> int:
        """The mtime, unless it is a timer, which is in the file's future; then the id has nearly the same time."""
        written = status.st_mtime_ns // 1000
        if written * 1000 <= status.st_ctime_ns or not UUID.fullmatch(id):
            return written
        known = (self.number(id) >> 12) * 1000
        return written if abs(written - known) < 1_000_000 else known

    def publish(self, id: str, hidden: int) -> None:
        """Through new/, unless it is delayed: any process that finds it there would deliver it.

        The folder of drafts is not synced: a draft that reappears is an orphan, and nobody's message."""
        if hidden:
            self._move(self.draft(id), id, hidden)
            return
        passing = f"{self._new}/{self._queue}:{id}"
        os.rename(self.draft(id), passing)
        try:
            self._move(passing, id, 0)
        except FileNotFoundError:
            if os.path.exists(passing):
                raise
            self._touched.add(self._at)  # a mover was faster and has delivered it

    def stamp(self) -> Stamp:
        """Every message passes through new/, so its mtime says nothing: it counts only while files are there."""
        queue, new, delay = stamp_of(self.watched)
        if new != self._passed:
            if os.listdir(self._new):
                return queue, new, delay
            if EXACT or not is_recent(new):
                self._passed = new
        return queue, 0, delay

    def rename(self, source: str, id: str, hidden: int) -> None:
        self._move(source, id, hidden)
        self._touched.add(source.rpartition("/")[0])

    def _move(self, source: str, id: str, hidden: int) -> None:
        target = self.path(id, hidden)
        if hidden:
            set_timer(source, hidden)
        if source != target:
            os.rename(source, target)
        self._touched.add(self._delay if hidden else self._at)
        if source == target:
            os.utime(self._delay)  # only the timer changed: let processes that watch the folder notice

    def seal(self, id: str, hidden: int) -> int:
        return os.stat(self.path(id, hidden)).st_ctime_ns if hidden else 0

    def remove(self, path: str, id: str) -> None:
        removed = f"{self._remove}/{self._queue}:{id}"
        os.rename(path, removed)
        self._touched.add(path.rpartition("/")[0])
        with suppress(FileNotFoundError):  # a reaper was first
            os.unlink(removed)

    def take_ids(self, count: int, now: int) -> list[str]:
        last, _ = self._sidecar.recall(MOST)
        first = max(last + 1, now // 1000 << 12 | -(-(now % 1000) * 4096 // 1000))
        self._sidecar.remember(first + count - 1, 0)
        return [_uuid(number) for number in range(first, first + count)]

    def number(self, id: str) -> int:
        return 0 if self._prefix + len(id) > MOST_NAME and not UUID.fullmatch(id) else number_of(id)

    def touched(self) -> list[str]:
        touched, self._touched = self._touched, set()
        return list(touched)


def number_of(id: str) -> int:
    if UUID.fullmatch(id):
        return int(id[:8] + id[9:13] + id[15:18], 16)
    if not SERVED.fullmatch(id):
        return 0
    return _number_of_version_1(id) or int.from_bytes(blake2b(id.encode(), digest_size=8).digest()) % (UNDATED - 1) + 1


def _number_of_version_1(id: str) -> int:
    """The number of a UUID that begins with its time, as MQ-Core's own do; 0 for other ids, or if it is before our numbers."""
    if not UUID_1.fullmatch(id):
        return 0
    micro = (int(id[15:18] + id[9:13] + id[:8], 16) - GREGORIAN) // 10
    number = micro // 1000 << 12 | micro % 1000 * 4096 // 1000
    return number if number >= UNDATED else 0


def _uuid(number: int) -> str:
    digits = f"{number:015x}"
    tail = f"{int.from_bytes(os.urandom(8)) >> 2 | 1 << 63:016x}"
    return f"{digits[:8]}-{digits[8:12]}-7{digits[12:]}-{tail[:4]}-{tail[4:]}"


class Spool(Format):
    def __init__(self, root: Path, peers: int = 0) -> None:
        self.root = root
        self.queues = root / "queues"
        self._peers = peers

    def prepare(self) -> None:
        for part in PARTS:
            (self.root / part).mkdir(exist_ok=True)
        (self.root / FOLDER / ".drafts").mkdir(exist_ok=True)

    def layout(self, queue: str, sidecar: Sidecar) -> SpoolLayout:
        return SpoolLayout(self.root, queue, sidecar, self._peers)

    def clear(self, queue: str) -> None:
        for part in ("new", "delay"):
            for entry in os.scandir(self.root / part):
                if entry.name.partition(":")[0] == queue:
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)

    def uuids(self, ids: Callable[[str], list[str]]) -> SpoolUuids:
        return SpoolUuids(self.root, ids)

    # for the daemons, in a batch of the store

    def move_on(self, now: int, on_damage: Callable[[str], object]) -> tuple[bool, int | None]:
        """A mover's work. Returns whether files are still being written, and when the next delay ends."""
        return deliver_new(self.root), deliver_delayed(self.root, now, on_damage)

    def reap(self) -> int:
        return destroy_removed(self.root)


class SpoolUuids(Uuids):
    """Another program's id need not be a UUID: one is derived from it."""

    def __init__(self, root: Path, ids: Callable[[str], list[str]]) -> None:
        self._root = root
        self._ids = ids

    def of(self, queue: str, id: str) -> str:
        return id if ANY_UUID.fullmatch(id) else str(uuid.uuid5(uuid.NAMESPACE_OID, f"{queue}:{id}"))

    def number(self, queue: str, id: str) -> int | None:  # noqa: ARG002
        return number_of(id) or None

    def id_of(self, queue: str, given: str) -> str | None:
        if not ANY_UUID.fullmatch(given) or "/" in queue:
            return None
        if given[14] == "5":  # derived from other ids, of which there are few
            for id in self._ids(queue):
                if self.of(queue, id) == given:
                    return id
        return given if any(map(os.path.exists, self._places(queue, given))) else None

    def _places(self, queue: str, id: str) -> tuple[str, ...]:
        """In an order in which a message that is moved on meanwhile is seen."""
        delayed = f"{self._root}/delay/{queue}:{id}"
        return f"{self._root}/new/{queue}:{id}", delayed, f"{self._root}/queues/{queue}/{id}", delayed


def open_spool(root: str | Path, patience: Patience, *, peers: int = 0) -> FileStore:
    """``peers``: how many others fetch from the same spool. With any, messages are not ordered, to lose fewer races.
    ``patience``: how long to wait for other processes that hold a lock."""
    return FileStore(root, Spool(Path(root), peers), patience)
