"""Notifies when files or folders change: by inotify, where there is one. Otherwise, and for changes by other machines, poll."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from threading import RLock
from typing import Any

MODIFY, ATTRIB, CLOSE_WRITE, MOVED_TO, CREATE, IGNORED = 0x2, 0x4, 0x8, 0x80, 0x100, 0x8000
ARRIVALS = CLOSE_WRITE | MOVED_TO | ATTRIB
"""A file is fully written, or came by a rename, or has a new timer."""
CHANGES = ARRIVALS | MODIFY | CREATE
MOST = 256
"""Paths that are watched. With more, poll."""
EVENT = struct.Struct("iIII")


@cache
def _libc() -> Any:
    ctypes = import_module("ctypes")  # most processes never wait for others
    return ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Watches paths. Events may be spurious; the woken process looks for itself. Owns a descriptor from the first path on."""

    def __init__(self, events: int = CHANGES) -> None:
        self._events = events
        self._handle = -1
        self._watched: dict[str, int] = {}
        self._lock = RLock()

    def follow(self, paths: Iterable[str]) -> bool:
        """Watch these paths, and no others. False if there is nothing to watch, or not all can be watched: then poll."""
        wanted = set(paths)
        if wanted == self._watched.keys():
            return bool(wanted)
        with self._lock:
            if len(wanted) > MOST or not hasattr(_libc(), "inotify_init1"):
                wanted = set()
            for path in self._watched.keys() - wanted:
                _libc().inotify_rm_watch(self._handle, self._watched.pop(path))
            if wanted and self._handle < 0:
                self._handle = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            for path in wanted - self._watched.keys() if self._handle >= 0 else ():
                number = _libc().inotify_add_watch(self._handle, os.fsencode(path), self._events)
                if number < 0:  # it does not exist yet, or there are too many watches
                    return False
                self._watched[path] = number
        return bool(self._watched)

    def wait(self, seconds: float) -> bool:
        """Whether there was an event within so many seconds."""
        handle = self._handle
        if handle < 0 or not select.select([handle], [], [], seconds)[0]:
            return False
        with suppress(BlockingIOError):
            found = os.read(handle, 1 << 16)  # one look serves them all
            place = 0
            while place < len(found):
                number, mask, _, length = EVENT.unpack_from(found, place)
                place += EVENT.size + length
                if mask & IGNORED:  # the path is gone, and perhaps there is another of its name
                    with self._lock:
                        self._watched = {path: known for path, known in self._watched.items() if known != number}
        return True

    def wake(self) -> None:
        """End a `wait` in another thread: a watch that is removed is an event."""
        self.follow(())

    def disown(self) -> None:
        """In a child, whose parent's thread may have held the lock: close the child's copy of the descriptor."""
        if self._handle >= 0:
            os.close(self._handle)

    def close(self) -> None:
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
            self._handle = -1
            self._watched.clear()
