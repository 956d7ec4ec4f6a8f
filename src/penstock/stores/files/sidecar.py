"""Sidecar files: what the file formats have no room for, kept where other programs do not trip over it.

    ROOT/.penstock/QUEUE/
      settings             the queue's settings (JSON) and, as messages have no expiry date, every retention it had
      lock                 held (flock) while names change; its 16 bytes: last id given, the message folder's mtime
      head/ID              content type, attributes, deadline, … of a message that has any
      held/ID              a record of a message that was ever received: receives, instants, path, holder
      mark/SHA256          the message that makes the next equal one a duplicate
      settled/AT.ID        a settled message: one line of JSON, then the body
      reader/SHA256/…      a reader of named claims: `name`, `settled`, and a file per epoch
      settings.copy        a copy of the settings: without them, messages would expire too soon
      damaged/…            files that could not be read, set aside under new names; nothing reads or removes them
    ROOT/.penstock/.clock/BOOT   the course of the store's clock: see `penstock.stores.clock_files`

A message that needs none of this has none of these files. They are written before their message becomes visible and removed
after it has gone, so that a crash leaves orphans here, but never a message without its head. For marks, see
`penstock.stores.files.marks`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.file_times import is_recent
from penstock.guarded import guarded
from penstock.message import MAX_NUMBER, Settings
from penstock.stores.disk import read_whole, remove_folder, write_whole
from penstock.stores.encoding import pack_settings
from penstock.stores.files.records import DAMAGE, DAMAGED_HEAD, Received, check_queue, check_record, set_aside
from penstock.stores.locks import FileLock, Locks

FOLDER = ".penstock"
PARTS = ("head", "held", "mark", "settled", "reader")
MEMO = struct.Struct("<qq")
FEW = 8
"""From this many messages on, one sync of the file system is cheaper than syncing each file."""


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@lru_cache(maxsize=1024)
def _parse(content: bytes) -> Any:
    """Parse the settings of a queue."""
    record = json.loads(content)
    check_queue(record)
    return record


def _lost_settings(queue: str) -> dict[str, Any]:
    """For a queue whose settings are lost: the defaults, but nothing expires."""
    settings = pack_settings(Settings(retention=MAX_NUMBER))
    return {"name": queue, "born": secrets.token_hex(8), "settings": settings, "retentions": [[0, MAX_NUMBER]]}


class Sidecar:
    """The sidecar folder of one queue."""

    def __init__(self, root: Path, queue: str, locks: Locks, on_damage: Callable[[str], object]) -> None:
        """``on_damage`` is called with what was found damaged and set aside."""
        self.queue = queue
        self.folder = root / FOLDER / queue
        self._at = os.fspath(self.folder)
        self._settings_at, self._copy_at, self._damaged_at = (
            f"{self._at}/{name}" for name in ("settings", "settings.copy", "damaged")
        )
        self._on_damage = on_damage
        self._lock = FileLock(f"{self._at}/lock", f"queue {queue!r} in the folder {root}", locks)
        self._locked = self._fresh = False
        self._record: Any = None
        self._seen: tuple[int, ...] | None = None

    def clear(self) -> None:
        """Remove a queue's files, except the lock, which has the last id: a successor must not reuse it.

        Needs the lock. Everything is renamed before it is removed, as others may be using it."""
        trash = self.make_trash()
        for part in (*PARTS, "damaged"):
            with suppress(FileNotFoundError):
                os.rename(f"{self._at}/{part}", trash / part)
        self.remove("settings")
        self.remove("settings.copy")
        remove_folder(trash.parent)

    def make_trash(self) -> Path:
        """A new folder for files that are about to be removed."""
        folder = self.folder / "gone"
        if not folder.is_dir():
            folder.mkdir()
        return Path(tempfile.mkdtemp(dir=folder))

    def make(self) -> None:
        """Needs the lock."""
        for part in PARTS:
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    @guarded
    def lock(self) -> Generator[None]:
        """Serialise name changes among Penstock's processes. The lock's memo can be read and written meanwhile."""
        self.take()
        try:
            yield
        finally:
            self.give()

    def take(self) -> None:
        """Like `lock`, until `give`."""
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
        """Like `give`, but keep the file open, because the lock will be taken again soon."""
        self._locked = False
        self._lock.pause()

    def give(self) -> None:
        self._locked = False
        self._lock.give()

    def remember(self, last: int, stamp: int) -> None:
        """Write the lock's memo."""
        os.pwrite(self._lock.handle, MEMO.pack(last, stamp), 0)

    def sync_memo(self) -> None:
        """After this, no crash can cause the ids given out so far to be reused."""
        os.fsync(self._lock.handle)

    def recall(self, most: int) -> tuple[int, int]:
        """The lock's memo: the last id given out, and the message folder's mtime when the last holder released the lock.

        An id above ``most`` means damage. Then the memo is ignored, and the folder is listed instead."""
        memo = os.pread(self._lock.handle, MEMO.size, 0)
        last, stamp = MEMO.unpack(memo) if len(memo) == MEMO.size else (0, 0)
        return (last, stamp) if 0 <= last <= most else (0, 0)

    def names(self, *parts: str) -> list[str]:
        """The names in a folder, without unfinished files."""
        return [name for name in os.listdir(self.folder.joinpath(*parts)) if not name.endswith("~")]

    def read_json(self, *parts: str) -> Any:
        """A record, or None if there is none. Damaged ones are set aside, except a message's head: see `Extra.intact`."""
        path = f"{self._at}/{'/'.join(parts)}"
        content = read_whole(path)
        if content is None:
            return None
        try:
            record = json.loads(content)
            check_record(parts[0], parts[-1], record)
        except DAMAGE:
            if parts[0] == "head":
                return DAMAGED_HEAD
            self.set_aside(path, content)
            return None
        return record

    def set_aside(self, path: str, content: bytes) -> None:
        """Move a damaged file to where nobody reads it."""
        set_aside(path, content, self._damaged_at, read_whole, self._on_damage)

    def damaged(self) -> int:
        """How many files were set aside."""
        try:
            return len(os.listdir(self._damaged_at))
        except FileNotFoundError:
            return 0

    def write_json(self, value: object, *parts: str, durable: bool = True) -> None:
        self._fresh = False
        write_whole(self.folder.joinpath(*parts), json.dumps(value).encode(), durable=durable)

    def settings(self) -> Any:
        """The record of the queue's settings; do not modify it. While we hold the lock, nobody else changes it."""
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
            self._record = None if content is None else self._parsed(content)
            # A file that has just changed may change again without a new mtime.
            self._seen = None if is_recent(max(seen[1:])) else seen
        self._fresh = True
        return self._record

    def stamp(self) -> tuple[int, ...]:
        """A value that changes when the settings do: the file is replaced each time."""
        try:
            status = os.stat(self._settings_at)
        except FileNotFoundError:  # another program made the queue
            return ()
        return status.st_ino, status.st_mtime_ns

    def _parsed(self, content: bytes) -> Any:
        try:
            return _parse(content)
        except DAMAGE:
            return self._restored(content)

    def _restored(self, damaged: bytes) -> Any:
        """The settings from their copy, which also replaces the damaged file."""
        copy = read_whole(self._copy_at)
        try:
            record = _parse(copy or b"")
            how = "restored from their copy"
        except DAMAGE:
            record = _lost_settings(self.queue)
            how = "lost: the queue has the default ones until it is updated, and its messages do not expire"
        kept = f"{self._damaged_at}/settings.{secrets.token_hex(4)}"
        with suppress(OSError):  # the disk is not writable: another process will do this
            os.makedirs(self._damaged_at, exist_ok=True)
            os.link(self._settings_at, kept)
            if read_whole(kept) == damaged:
                write_whole(Path(self._settings_at), json.dumps(record).encode())
                damage = f"the file {self._settings_at} is damaged; it was set aside as {kept}, and the settings were {how}"
                self._on_damage(damage)
            else:  # another process has rewritten them since
                os.unlink(kept)
        return record

    def save_settings(self, record: dict[str, Any]) -> None:
        self.write_json(record, "settings")
        self.write_json(record, "settings.copy")

    def keep_copy(self) -> None:
        """Needs the lock. Queues made by an earlier version have no copy of their settings."""
        record = self.settings()
        if record is not None and not os.path.exists(self._copy_at):
            self.write_json(record, "settings.copy")

    def remove(self, *parts: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._at}/{'/'.join(parts)}")

    def received_path(self, id: str) -> str:
        return f"{self._at}/held/{id}"

    def received(self, id: str) -> Received | None:
        """The record of a message that was received."""
        path = self.received_path(id)
        content = read_whole(path)
        if not content:  # never received, or killed before the first record was written
            return None
        try:
            return Received.unpack(content)
        except DAMAGE:
            self.set_aside(path, content)
            return None

    def write_received(self, id: str, received: Received, *, durable: bool = False) -> None:
        """With one write, so that a kill leaves the old record or the new one."""
        handle = os.open(self.received_path(id), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(handle, received.pack(), 0)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)

    def forget(self, id: str) -> None:
        for part in ("head", "held"):
            self.remove(part, id)
