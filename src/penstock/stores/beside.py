"""What the file formats have no room for, kept beside the messages where a foreign program does not trip over it.

    ROOT/.penstock/QUEUE/
      settings             the queue's settings (JSON) and, as messages bear no date of expiry, every retention it had
      lock                 held (flock) while names change; its 16 bytes: last id given, the message folder's mtime
      head/ID              content type, attributes, deadline, … of a message that has any
      held/ID              a record of a message that was ever received: receives, instants, where it lies, who holds it
      mark/SHA256          the message that makes the next equal one a duplicate
      settled/AT.ID        a settled message: one line of JSON, then the body
      reader/SHA256/…      a reader of named claims: `settled`, and a file an epoch
    ROOT/.penstock/.clock/BOOT   the course of the store's clock: see `penstock.stores.clock_files`

A message that uses none of it has none of these files. All of them are written before the message they belong to is visible and
removed after it has gone, so that what a crash leaves behind are orphans here, never a message without its head. How marks are
kept is told in `penstock.stores.file_marks`.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.stores.disk import sync
from penstock.stores.encoding import Head, pack_head, unpack_head
from penstock.stores.locks import FileLock, Patience

FOLDER = ".penstock"
PARTS = ("head", "held", "mark", "settled", "reader")
MEMO = struct.Struct("<qq")
PIECE = 65536
TICK = 20_000_000
"""Changes within some milliseconds may give a file the same mtime; this (ns) is longer than that."""
NUMBERS = 9
HELD = struct.Struct(f"<{NUMBERS}q")
FEW = 8
"""From so many messages on, one sync of the file system is cheaper than one of each file."""
AT_FDCWD, RENAME_NOREPLACE = -100, 1
_libc = ctypes.CDLL(None, use_errno=True)
_renameat2 = getattr(_libc, "renameat2", None)
if _renameat2:
    _renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


class Hold(NamedTuple):
    """The record of a message that was received.

    ``released`` is 1 once it was given back. A receipt counts while the message lies where ``hidden_until`` says or, as the
    record is written before the rename, ``hidden_before``. ``seal`` tells our hiding from a stranger's where the path does not.
    ``holder`` is the name that the receiver gave.

    On the disk: nine numbers of eight bytes, a byte with the length of the holder, the holder in UTF-8. Nothing, the last byte
    included, follows the numbers in a record of an older Penstock; what follows the holder is left from a longer one.
    """

    receives: int
    delivery: int
    sent_at: int
    first_received_at: int
    received_at: int
    hidden_until: int
    released: int
    hidden_before: int = 0
    seal: int = 0
    holder: str | None = None

    def pack(self) -> bytes:
        holder = (self.holder or "").encode()
        return HELD.pack(*self[:NUMBERS]) + bytes([len(holder)]) + holder

    @classmethod
    def unpack(cls, content: bytes) -> Hold:
        holder = content[HELD.size + 1 :][: content[HELD.size]] if len(content) > HELD.size else b""
        return cls(*HELD.unpack_from(content))._replace(holder=holder.decode(errors="replace") or None)


def read_whole(path: str) -> bytes | None:
    """A small file, with as few calls as there can be; None if it is not there."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        content = os.read(handle, PIECE)
        while len(content) % PIECE == 0 and (more := os.read(handle, PIECE)):
            content += more
        return content
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file in one step: whoever reads it sees the old bytes or the new ones."""
    draft = path.with_name(f"{path.name}.{os.getpid()}~")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while content:
            content = content[os.write(handle, content) :]
        if durable:
            os.fsync(handle)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    finally:
        os.close(handle)
    draft.rename(path)
    if durable:
        sync(path.parent)


def sync_file_system(folder: Path) -> None:
    if not hasattr(_libc, "syncfs"):
        os.sync()
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(handle)


def rename_new(source: str, target: str) -> None:
    """Rename, but never over another file: `FileExistsError`."""
    if _renameat2 and _renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), RENAME_NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (0, errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(target))
    os.link(source, target)  # a file system that knows no such rename
    os.unlink(source)


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


class Extra(NamedTuple):
    """What a message's head file holds."""

    head: Head
    sent_at: int | None = None
    visible_at: int | None = None
    expires_at: int | None = None
    deadline_at: int | None = None
    group: str | None = None
    mark: bytes | None = None
    moved_at: int | None = None

    def pack(self) -> dict[str, Any]:
        head = pack_head(self.head)
        fields = self._replace(head=None, mark=self.mark and self.mark.hex())._asdict()  # type: ignore[arg-type]
        return {name: value for name, value in fields.items() if value is not None} | ({"head": head.decode()} if head else {})

    @classmethod
    def unpack(cls, fields: dict[str, Any] | None) -> Extra:
        if fields is None:
            return cls(unpack_head(None))
        head, mark = fields.pop("head", None), fields.pop("mark", None)
        return cls(unpack_head(head and head.encode()), **fields, mark=mark and bytes.fromhex(mark))


@lru_cache(maxsize=1024)
def _parse(content: bytes) -> Any:
    return json.loads(content)


class Beside:
    """The folder beside one queue's messages."""

    def __init__(self, root: Path, queue: str, patience: Patience | None = None) -> None:
        self.folder = root / FOLDER / queue
        self._at = os.fspath(self.folder)
        self._settings_at = f"{self._at}/settings"
        self._lock = FileLock(f"{self._at}/lock", f"queue {queue!r} in the folder {root}", patience or Patience())
        self._locked = self._fresh = False
        self._record: Any = None
        self._seen: tuple[int, ...] | None = None

    def clear(self) -> None:
        """Forget a queue that was here; but not the lock, which knows the last id: a successor must not give it again.

        Under the lock; all is renamed before it is removed, as others may be using it."""
        gone = self.gone()
        for part in PARTS:
            with suppress(FileNotFoundError):
                os.rename(f"{self._at}/{part}", gone / part)
        self.remove("settings")
        shutil.rmtree(gone.parent, ignore_errors=True)

    def gone(self) -> Path:
        """A folder for what is about to be removed."""
        folder = self.folder / "gone"
        if not folder.is_dir():
            folder.mkdir()
        return Path(tempfile.mkdtemp(dir=folder))

    def make(self) -> None:
        """Under the lock."""
        for part in PARTS:
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Serialise the changes of names among Penstock's processes; its memo can be read and written meanwhile."""
        self.take()
        try:
            yield
        finally:
            self.give()

    def take(self) -> None:
        """As `lock`, until `give`."""
        if self._lock.handle < 0:
            self._open_lock()
        self._lock.take()
        self._locked, self._fresh = True, False

    def _open_lock(self) -> None:
        try:
            self._lock.open()
        except FileNotFoundError:  # the first time
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.open()

    def pause(self) -> None:
        """As `give`, but the lock is soon taken again: its file stays open until then."""
        self._locked = False
        self._lock.pause()

    def give(self) -> None:
        self._locked = False
        self._lock.give()

    def remember(self, last: int, stamp: int) -> None:
        """Write the lock's memo."""
        os.pwrite(self._lock.handle, MEMO.pack(last, stamp), 0)

    def sync_memo(self) -> None:
        """After this, no crash can lead to the ids that were given so far being given again."""
        os.fsync(self._lock.handle)

    def recall(self) -> tuple[int, int]:
        """The lock's memo: the last id given, and how the message folder looked when the last holder left it."""
        memo = os.pread(self._lock.handle, MEMO.size, 0)
        return MEMO.unpack(memo) if len(memo) == MEMO.size else (0, 0)

    def names(self, *parts: str) -> list[str]:
        """What is in a folder, without what is being written (or was, when its writer died)."""
        return [name for name in os.listdir(self.folder.joinpath(*parts)) if not name.endswith("~")]

    def read_json(self, *parts: str) -> Any:
        content = read_whole(f"{self._at}/{'/'.join(parts)}")
        return None if content is None else json.loads(content)

    def write_json(self, value: object, *parts: str, durable: bool = True) -> None:
        self._fresh = False
        write_whole(self.folder.joinpath(*parts), json.dumps(value).encode(), durable=durable)

    def settings(self) -> Any:
        """The record of the queue's settings; not to be changed. While we hold the lock, nobody else changes it."""
        if self._locked and self._fresh:
            return self._record
        try:
            status = os.stat(self._settings_at)
        except FileNotFoundError:
            self._record = self._seen = None
            return None
        seen = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        if seen != self._seen:
            content = read_whole(self._settings_at)
            self._record = None if content is None else _parse(content)
            # What has just changed may change again and look the same.
            self._seen = seen if time.time_ns() - max(seen[1:]) > TICK else None
        self._fresh = True
        return self._record

    def remove(self, *parts: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._at}/{'/'.join(parts)}")

    def hold_path(self, id: str) -> str:
        return f"{self._at}/held/{id}"

    def hold(self, id: str) -> Hold | None:
        content = read_whole(self.hold_path(id))
        # Never received, or killed before the first record was written.
        return Hold.unpack(content) if content is not None and len(content) >= HELD.size else None

    def set_hold(self, id: str, hold: Hold, *, durable: bool = False) -> None:
        """By one write, so that a kill leaves the old record or the new one."""
        handle = os.open(self.hold_path(id), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(handle, hold.pack(), 0)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)

    def forget(self, id: str) -> None:
        for part in ("head", "held"):
            self.remove(part, id)
